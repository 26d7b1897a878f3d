"""Calls the readers of `tests/browser`: Khronos's validator, three.js and Autodesk's FBX SDK."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "browser"
_MODULES = FOLDER / "node_modules"
_FBX2GLTF = _MODULES / "fbx2gltf" / "bin" / "Linux" / "FBX2glTF"


def require_node(*packages: str) -> None:
    """Skip the test where node or one of the packages is not installed."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    missing = [name for name in packages if not (_MODULES / name).is_dir()]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: run `npm ci` in tests/browser")


def validate(path: Path) -> dict[str, Any]:
    """The issues that Khronos's validator finds in a glTF file."""
    require_node("gltf-validator", "three")
    return _node("validate", str(path))["issues"]


def three_joints(path: Path, times: Sequence[float]) -> dict[str, np.ndarray]:
    """World positions (T,3) of every bone at `times` in seconds, as three.js plays the file."""
    require_node("gltf-validator", "three")
    answer = _node("joints", str(path), *[repr(float(t)) for t in times])
    return {name: np.array(places) for name, places in answer["joints"].items()}


def fbx_to_glb(path: Path) -> Path:
    """The FBX file as glTF, read by Autodesk's SDK at 30 frames a second."""
    require_node("fbx2gltf")
    if not _FBX2GLTF.is_file():
        pytest.skip("fbx2gltf brings its program for x86-64 Linux only")
    _FBX2GLTF.chmod(0o755)  # npm loses the mode
    out = path.with_suffix(".fbx.glb")
    command = [str(_FBX2GLTF), "--binary", "--anim-framerate", "bake30"]
    done = subprocess.run(
        [*command, "-i", str(path), "-o", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def _node(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        ["node", str(FOLDER / "read_gltf.mjs"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
