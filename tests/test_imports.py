"""Importing a room loads no more than the room may use. Each check is a clean interpreter.

import-linter (pyproject.toml) holds who may name whom; this holds what is really loaded, packages
that pull in others included, and which third-party packages each room may name.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

REPO = Path(__file__).resolve().parent.parent

# Third-party packages a room may name; "*" admits all that the project declares. CONTRIBUTING.md
# shows the same table in words.
MATHS = {"torch", "numpy", "scipy", "roma"}
MAY_USE = {
    "errors": set(),
    "config": set(),
    "planning": set(),
    "motion": MATHS,
    "model": MATHS | {"triton"},
    "flow": MATHS,
    "text": {"torch", "numpy", "tokenizers", "transformers", "httpx", "safetensors"},
    "formats": MATHS
    | {"pyarrow", "safetensors", "pygltflib", "yaml", "PIL", "imageio_ffmpeg", "pxr"}
    | {"httpx", "filelock", "pufbx"},
    "api": {"torch", "numpy"},
    "client": {"httpx"},
    "engine": {"*"},
    "cli": {"click", "rich"},
    "cli_options": {"click", "yaml"},
    "cli_doctor": {"click"},
    "cli_evaluate": {"click"},
    "cli_ingest": {"click"},
    "cli_serve": {"click", "yaml"},
    "cli_plan": {"click"},
    "cli_train": {"click"},
}
_IMPORT_ALL = """
import importlib, json, sys
guilty = {}
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
    for banned in json.loads(sys.argv[2]):
        if banned in sys.modules:
            guilty.setdefault(banned, name)
print(json.dumps(guilty))
"""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("hymotion_ray", include_external_packages=True, cache_dir=None)


def _modules(graph: grimp.ImportGraph, *rooms: str) -> list[str]:
    names = [f"hymotion_ray.{room}" for room in rooms]
    assert all(name in graph.modules for name in names), f"one of the rooms {names} is gone"
    return sorted(m for m in graph.modules if any(f"{m}.".startswith(f"{n}.") for n in names))


def _loaded(modules: list[str], banned: list[str]) -> dict[str, str]:
    """Import `modules` in turn in a new interpreter: each banned package, and what brought it."""
    command = [sys.executable, "-c", _IMPORT_ALL, json.dumps(modules), json.dumps(banned)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_package_and_command_line_load_neither_torch_nor_ray():
    heavy = ["torch", "ray", "numpy", "transformers", "pyarrow", "scipy"]
    assert _loaded(["hymotion_ray"], [*heavy, "click"]) == {}
    assert _loaded(["hymotion_ray.cli"], heavy) == {}
    assert _loaded(["hymotion_ray.client"], heavy) == {}


def test_plain_rooms_load_no_third_party_package(graph):
    modules = _modules(graph, "errors", "config", "planning")
    assert _loaded(modules, ["torch", "ray", "numpy", "click", "yaml", "pyarrow"]) == {}


def test_maths_rooms_load_no_ray_and_transformers_only_for_a_large_encoder(graph):
    large = ["text.context_model", "text.pretrained", "text.vector_model"]
    late = [f"hymotion_ray.{name}" for name in large]
    rooms = _modules(graph, "motion", "model", "flow", "text", "formats", "api")
    modules = [*(name for name in rooms if name not in late), *late]
    guilty = _loaded(modules, ["ray", "fastapi", "transformers"])
    assert guilty.pop("transformers", late[0]) == late[0]
    assert guilty == {}


@pytest.mark.parametrize("room", MAY_USE)
def test_room_names_only_its_third_party_packages(graph, room):
    if "*" in MAY_USE[room]:
        allowed = {name.lower().replace("-", "_") for name in _declared_imports()}
    else:
        allowed = {name.lower() for name in MAY_USE[room]}
    named = {}
    for module in _modules(graph, room):
        for found in graph.find_modules_directly_imported_by(module):
            top = found.split(".")[0]
            if top != "hymotion_ray" and top not in sys.stdlib_module_names:
                named.setdefault(top, module)
    assert {top: by for top, by in named.items() if top.lower() not in allowed} == {}


def _declared_imports() -> set[str]:
    """Top-level import names of the distributions that pyproject.toml declares, extras included."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needs = [*project["dependencies"], *(need for extra in extras for need in extra)]
    declared = {_distribution(need) for need in needs}
    provided = packages_distributions()
    return {
        top for top, dists in provided.items() if {_distribution(dist) for dist in dists} & declared
    }


def _distribution(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def test_every_third_party_import_is_declared(graph):
    declared = {name.lower() for name in _declared_imports()}
    external = {
        module
        for module in graph.modules
        if not f"{module}.".startswith("hymotion_ray.") and module not in sys.stdlib_module_names
    }
    missing = {module for module in external if module.lower() not in declared}
    assert missing == set()
