"""Bringing a released model in, and giving a model back in the released layout.

Import gathers what a release spreads over a model folder and a code checkout into one converted
folder. Nothing of the checkout is run.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hymotion_ray.config.fields import override
from hymotion_ray.errors import CheckpointError, InputError
from hymotion_ray.formats.local_file import require_folder
from hymotion_ray.formats.models.body_folder import MESH_FILES, REST_FILE, read_body
from hymotion_ray.formats.models.checkpoint import (
    RELEASE_CONFIG_FILE,
    RELEASE_WEIGHTS_FILE,
    Checkpoint,
    read_model,
    write_assets,
    write_model,
)
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.formats.models.names import SPECIAL_NAMES, feature_shapes
from hymotion_ray.formats.models.new_folder import new_folder
from hymotion_ray.formats.models.prompt_template import template_of_checkout
from hymotion_ray.formats.models.release_config import write_release_config
from hymotion_ray.formats.models.tensors import Tensors
from hymotion_ray.formats.torch_file import write_torch_file


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import found and what it did without."""

    folder: str
    """The converted folder."""
    fingerprint: str
    """Fingerprint of the model."""
    variant: str
    """`1.0`, `lite` or `other`, from the tensor shapes."""
    num_parameters: int
    """Numbers in all tensors, statistics and learned features included."""
    found: dict[str, str] = field(default_factory=dict)
    """Part -> where it came from."""
    missing: dict[str, str] = field(default_factory=dict)
    """Part -> what its absence costs, and how to bring it in."""

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return dataclasses.asdict(self)

    def words(self) -> str:
        """The report as lines to read."""
        lines = [
            f"{self.folder}: HY-Motion {self.variant}"
            if self.variant != "other"
            else f"{self.folder}: a model of its own shape",
            f"{self.num_parameters:,} parameters, fingerprint {self.fingerprint[:16]}",
        ]
        lines += [f"found {part}: {where}" for part, where in self.found.items()]
        lines += [f"missing {part}: {cost}" for part, cost in self.missing.items()]
        return "\n".join(lines)


def import_release(
    release_dir: str | Path,
    out: str | Path,
    checkout: str | Path | None = None,
    llm_path: str | Path | None = None,
    clip_path: str | Path | None = None,
) -> ImportReport:
    """Write the converted folder `out` of a release, whole or not at all.

    `release_dir` is any form `read_model` takes, a built-in name or `hf:REPO@REVISION`; `checkout`
    a checkout of the released repository, for the body mesh and the prompt template; `llm_path` and
    `clip_path` folders of the Qwen3 and CLIP models, which are recorded and not copied. Raises
    `InputError` for unusable input and `OutputError` when `out` holds something already.
    """
    folder = model_folder(release_dir)
    checkpoint = read_model(folder)
    _refuse_nonfinite(checkpoint)
    found = {"weights": str(folder)}
    if checkpoint.skeleton is not None:
        found["body"] = found["weights"]
    if checkpoint.prompt_template is not None:
        found["prompt template"] = found["weights"]
    if checkout is not None:
        root = require_folder(Path(checkout).expanduser(), InputError)
        checkpoint = _with_checkout(checkpoint, root, found)
    checkpoint = _with_encoders(checkpoint, llm_path, clip_path, found)
    write_model(checkpoint, out)
    return ImportReport(
        folder=str(Path(out).expanduser()),
        fingerprint=checkpoint.fingerprint,
        variant=checkpoint.variant,
        num_parameters=sum(tensor.numel() for tensor in checkpoint.tensors().values()),
        found=found,
        missing=_missing(checkpoint, checkout is not None),
    )


def export_release(model: str | Path, out: str | Path) -> None:
    """Write a model in the released layout: `config.yml`, `latest.ckpt`, `stats/`, `body/`.

    `model` is any form that `import_release` takes; `read_model` reads the result to the same
    fingerprint. What that layout has no place for (name, licence, text encoder files) stands beside
    it, where the released tool does not look.
    """
    checkpoint = read_model(model_folder(model))
    with new_folder(Path(out).expanduser()) as new:
        write_release_config(checkpoint.config, new / RELEASE_CONFIG_FILE)
        state = _blank_special(checkpoint) | checkpoint.tensors()
        content = {"model_state_dict": state, "epoch": 0, "global_step": 0}
        write_torch_file(content, new / RELEASE_WEIGHTS_FILE)
        write_assets(checkpoint, new)


def _refuse_nonfinite(checkpoint: Checkpoint) -> None:
    """Weights with NaN or infinity make every clip fail; an import reads them all and can tell."""
    bad = [n for n, t in checkpoint.tensors().items() if not bool(torch.isfinite(t).all())]
    if bad:
        raise CheckpointError(
            f"{checkpoint.folder}: {len(bad)} tensors hold NaN or infinity, such as "
            f"{', '.join(bad[:3])}; the weights are damaged, or were saved after training diverged"
        )


def _blank_special(checkpoint: Checkpoint) -> Tensors:
    """Zeros for the game features, which the released layout asks for and sampling does not use."""
    shapes = feature_shapes(checkpoint.config.network)
    return {name: torch.zeros(shapes[name]) for name in SPECIAL_NAMES}


def _with_checkout(checkpoint: Checkpoint, checkout: Path, found: dict[str, str]) -> Checkpoint:
    """The checkpoint with the body and template of a checkout, where it has none of its own."""
    if checkpoint.skeleton is None and (body := find_body(checkout)) is not None:
        skeleton, mesh = read_body(body)
        checkpoint = dataclasses.replace(checkpoint, skeleton=skeleton, mesh=mesh)
        found["body"] = str(body)
    if checkpoint.prompt_template is None:
        template = template_of_checkout(checkout)
        if template is not None:
            checkpoint = dataclasses.replace(checkpoint, prompt_template=template)
            found["prompt template"] = str(checkout)
    return checkpoint


def find_body(checkout: Path) -> Path | None:
    """The first folder below `checkout`, by path, that holds a body's files; None: there is none.

    A folder with some of the files only is an error, since a half-fetched body is no body.
    """
    wanted = {*MESH_FILES, REST_FILE}
    partial = None
    for root, folders, files in os.walk(checkout):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if wanted <= set(files):
            return Path(root)
        if "v_template.bin" in files and partial is None:
            partial = Path(root)
    if partial is not None:
        lacking = sorted(name for name in wanted if not (partial / name).exists())
        raise CheckpointError(
            f"{partial} holds a body mesh without {', '.join(lacking)}; check out the repository "
            "again (`git lfs pull` fetches large files)"
        )
    return None


def _with_encoders(
    checkpoint: Checkpoint,
    llm_path: str | Path | None,
    clip_path: str | Path | None,
    found: dict[str, str],
) -> Checkpoint:
    paths = {"llm_path": llm_path, "clip_path": clip_path}
    text = checkpoint.config.text
    for name, path in paths.items():
        if path is not None:
            found[name] = str(require_folder(Path(path).expanduser(), InputError).resolve())
            text = override(text, [f"{name}={json.dumps(found[name])}"])
    return dataclasses.replace(checkpoint, config=dataclasses.replace(checkpoint.config, text=text))


def _missing(checkpoint: Checkpoint, has_checkout: bool) -> dict[str, str]:
    """What the model lacks and what that costs."""
    remedy = "import again with --checkout, a checkout of the released repository"
    if has_checkout:
        remedy = "the checkout does not hold it; check out the release that the weights belong to"
    missing = {}
    if checkpoint.mesh is None:
        missing["body mesh"] = (
            "motions are put on the ground by their ankle and foot joints instead of the mesh "
            f"(within 1.4 cm on four real clips); {remedy}"
        )
    if checkpoint.skeleton is None:
        missing["skeleton"] = f"joints are those of a generic body of 1.73 m; {remedy}"
    if checkpoint.config.text.kind != "qwen_clip":
        return missing
    if checkpoint.prompt_template is None:
        missing["prompt template"] = (
            f"text features are not the ones the model was trained on; {remedy}"
        )
    for name, encoder in (("llm_path", "Qwen3-8B"), ("clip_path", "CLIP-L")):
        if getattr(checkpoint.config.text, name) is None:
            option = "--" + name.removesuffix("_path")
            missing[name] = f"{encoder} is not in the folder; give {option} when rendering"
    return missing
