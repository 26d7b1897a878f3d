"""Wheel and sdist as a user gets them: complete, and at work in a clean venv of each Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path, seconds: int = 1200) -> str:
    """Run without this checkout in reach of imports."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=kept, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the tracked files, and the wheel that is made of that sdist."""
    folder = tmp_path_factory.mktemp("packages")
    tree = folder / "tree"
    listed = subprocess.run(["git", "-C", str(REPO), "ls-files", "-z"], capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        source = REPO / name
        if name and source.is_file() and (name.startswith("hymotion_ray/") or "/" not in name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, tree / name)
    backend = "import setuptools.build_meta as b, sys; getattr(b, sys.argv[1])(sys.argv[2])"
    run(sys.executable, "-c", backend, "build_sdist", str(folder), cwd=tree)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", backend, "build_wheel", str(folder), cwd=source)
    return folder


def test_the_wheel_of_the_sdist_holds_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("hymotion_ray/")}
        (metadata,) = [n for n in archive.namelist() if n.endswith("METADATA")]
        told = archive.read(metadata).decode()
    tree = built / "tree"
    wanted = {
        path.relative_to(tree).as_posix()
        for path in (tree / "hymotion_ray").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == wanted
    assert "Requires-Python: >=3.11" in told
    assert "License-Expression: Apache-2.0" in told


def interpreter(version: str) -> str:
    """A Python of that version; skips where there is none."""
    names = [
        f"python{version}",
        *map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/python")),
    ]
    for name in names:
        found = shutil.which(name)
        check = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        if found is not None:
            done = subprocess.run([found, "-c", check], capture_output=True, text=True)
            if done.stdout.strip() == version:
                return found
    pytest.skip(f"no Python {version} here")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_wheel_renders_in_a_clean_venv(version: str, built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "venv"
    run(interpreter(version), "-m", "venv", str(place), cwd=tmp_path)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-qq"]
    pinned = (REPO / "constraints.txt").read_text()
    torch = next(line for line in pinned.splitlines() if line.startswith("torch=="))
    # A build for CPUs, since the other takes gigabytes.
    if subprocess.run([*pip, "--dry-run", "--no-deps", f"{torch}+cpu"]).returncode:
        pytest.skip(f"no CPU build of {torch} for Python {version} here")
    run(*pip, "-c", str(REPO / "constraints.txt"), f"{torch}+cpu", str(wheel), cwd=tmp_path)
    command = str(place / "bin" / "hymotion-ray")
    assert run(command, "--version", cwd=tmp_path).startswith("hymotion-ray")
    (tmp_path / "p.txt").write_text("A person walks.#24#walk\n")
    options = ["render", "p.txt", "--model", "tiny", "--steps", "4", "--out", "out"]
    run(command, *options, cwd=tmp_path)
    assert [path.name for path in (tmp_path / "out").rglob("*.npz")] == ["walk_s0.npz"]
    completion = {**os.environ, "_HYMOTION_RAY_COMPLETE": "bash_source"}
    shown = subprocess.run([command], capture_output=True, text=True, env=completion)
    assert "hymotion-ray" in shown.stdout, "shell completion"
