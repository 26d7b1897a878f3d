"""The project's security promises that no single room owns: floors, tokens, secrets in the open."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import ray
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.render import RenderConfig, RewriteConfig
from hymotion_ray.config.serve import HttpConfig, ServeConfig
from hymotion_ray.engine.serve.keys import new_key, read_keys
from hymotion_ray.errors import ConfigError

REPO = Path(__file__).resolve().parents[2]
FLOOR = Version("2.54.0")
"""Below it pages of other sites can delete jobs (CVE-2026-27482)."""


def requirements() -> list[Requirement]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(need for extra in extras for need in extra)]
    return [Requirement(text) for text in texts]


def test_no_ray_below_the_floor_can_be_installed() -> None:
    rays = [need for need in requirements() if need.name == "ray"]
    assert rays
    for need in rays:
        for version in ("2.53.0", "2.9.3"):
            assert not need.specifier.contains(version), need
    assert Version(ray.__version__) >= FLOOR


def test_every_start_command_of_the_project_asks_for_the_token() -> None:
    """Launcher files, scripts and pages: `ray start` for others is never without."""
    for path in (REPO / "cluster").glob("*"):
        text = path.read_text() if path.is_file() else ""
        if "ray start" in text:
            assert "RAY_AUTH_MODE=token" in text, path
            assert "RAY_AUTH_MODE=disabled" not in text, path
        assert "dashboard-host=0.0.0.0" not in text, path


def test_the_endpoint_listens_on_loopback_unless_told() -> None:
    assert HttpConfig().host == "127.0.0.1"


SECRET = "s3cr3t-" + "x" * 20


def test_configs_hold_names_of_secrets_and_never_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "HYMOTION_WEBHOOK_SECRET", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    rewrite = RewriteConfig(endpoint="https://host/v1", model="m")
    dumps = [
        to_mapping(RenderConfig(prompts=("p.txt",), model="tiny", out="o", rewrite=rewrite)),
        to_mapping(ServeConfig()),
    ]
    for dump in dumps:
        assert SECRET not in json.dumps(dump)
    assert dumps[0]["rewrite"]["api_key_env"] == "OPENAI_API_KEY"


def test_neither_keys_nor_hashes_are_in_reprs_logs_or_errors(tmp_path: Path) -> None:
    key, digest = new_key()
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "keys": [{"name": "a", "sha256": digest}]}))
    seen = io.StringIO()
    handler = logging.StreamHandler(seen)
    logging.getLogger().addHandler(handler)
    try:
        ring = read_keys(str(path))
        logging.getLogger("hymotion_ray").warning("%r %r", ring, ring.identify(f"Bearer {key}"))
        path.write_text(yaml.safe_dump({"schema": 1, "keys": [{"name": "a", "sha256": key}]}))
        with pytest.raises(ConfigError) as refused:
            read_keys(str(path))
    finally:
        logging.getLogger().removeHandler(handler)
    told = seen.getvalue() + str(refused.value) + repr(refused.value)
    assert key not in told
    assert digest not in told


def test_no_code_reads_a_pickle_but_the_one_loader() -> None:
    """Beside the linter's ban on names: also through numpy, pandas and dill."""
    guilty = []
    for path in (REPO / "hymotion_ray").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                keywords = {k.arg: k.value for k in node.keywords}
                allow = keywords.get("allow_pickle")
                if isinstance(allow, ast.Constant) and allow.value is True:
                    guilty.append(f"{path.name}:{node.lineno}")
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if {"dill", "cloudpickle", "shelve", "marshal"} & {n.split(".")[0] for n in names}:
                guilty.append(f"{path.name}:{node.lineno}")
    assert guilty == []


def test_no_key_stands_in_the_tree() -> None:
    """Shapes of real keys: cloud, hub, OpenAI-like, our own, private keys."""
    shapes = re.compile(
        r"AKIA[0-9A-Z]{16}|hf_[A-Za-z]{30,}|sk-[A-Za-z0-9]{32,}|hmr_[A-Za-z0-9_-]{40,}"
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    )
    command = ["git", "-C", str(REPO), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        path = REPO / name
        if name and path.is_file() and path.stat().st_size < 2**20:
            found = shapes.search(path.read_text(encoding="utf-8", errors="replace"))
            own = path == Path(__file__)
            assert found is None or own, f"{name}: {found and found.group()[:8]}..."
