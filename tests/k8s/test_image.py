"""The image's files: linted, complete, and of one mind with constraints.txt and the manifests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from k8s_objects import ENTRIES, build, ray_cluster

REPO = Path(__file__).resolve().parents[2]
IMAGE = REPO / "image"
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(name: str) -> dict[str, str]:
    lines = [
        line
        for line in (IMAGE / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), f"{name}: a line without its hash"
    return {match[1]: match[2] for match in matches if match}


def pinned() -> dict[str, str]:
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_the_dockerfile_is_linted() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    program = str(hadolint) if hadolint.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint")
    done = subprocess.run([program, str(IMAGE / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_is_pinned_compiled_and_not_root() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE$", text, re.MULTILINE), "a base of its own would go stale"
    assert "FROM ${BASE:?" in text
    stages = text.split("\nFROM ")
    for stage in stages[1:]:
        users = re.findall(r"^USER (\S+)", stage, re.MULTILINE)
        assert users[-1] == "1000:100"
    for target in ("cpu", "cuda"):
        (stage,) = [s for s in stages if s.startswith(f"common AS {target}")]
        assert "--require-hashes" in stage
        assert "compileall" in stage
    assert "latest" not in text


def test_locks_have_the_tested_versions_and_all_that_is_needed() -> None:
    shared, cpu, cuda = (locked(f"requirements{n}.lock") for n in ("", "-cpu", "-cuda"))
    wanted = pinned()
    for lock in (shared, cpu, cuda):
        for name, version in lock.items():
            if name in wanted:
                assert version.split("+")[0] == wanted[name], name
    assert cpu["torch"].endswith("+cpu")
    assert "+" not in cuda["torch"]
    assert not set(shared) & (set(cpu) | set(cuda))
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [
        *project["dependencies"],
        *(n for e in ("text", "train", "serve", "export") for n in extras[e]),
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", need)[0]).lower() for need in needs}
    assert names - {"torch"} <= set(shared), "run `make lock`"
    assert "setuptools" in shared  # builds the wheel in the image


def test_manifests_and_locks_name_one_ray() -> None:
    ray = locked("requirements.lock")["ray"]
    for entry in ENTRIES:
        for document in build(entry):
            if document["kind"].startswith("Ray"):
                assert ray_cluster(document)["rayVersion"] == ray
    environment = yaml.safe_load((IMAGE / "environment.yml").read_text())
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    named = dict(p.split("==") for p in pip if "==" in p)
    assert named == {"torch": f"{pinned()['torch']}+cpu", "ray[data,default,serve,train]": ray}


def test_what_the_image_needs_is_sent_to_the_builder() -> None:
    """.dockerignore lets in what COPY names, and nothing else."""
    lines = (REPO / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (IMAGE / "Dockerfile").read_text(), re.MULTILINE
    )
    for name in " ".join(copied).split():
        assert name in allowed, name
        assert list(REPO.glob(name)), name
