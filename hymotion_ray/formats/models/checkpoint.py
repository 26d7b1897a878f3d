"""A model on disk, in any of the forms people hold it, as one `Checkpoint`.

Reads a release folder (`config.yml` + `latest.ckpt`), a converted folder (`config.json` +
`model.safetensors`; a training checkpoint is one with `state/` beside) and safetensors with the
published names; writes the converted folder. Everything is checked before anything is used, and
nothing in a model can run code. Knows the network by its tensor names only, and no sampling.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from hymotion_ray.config import ModelConfig
from hymotion_ray.config.fields import from_mapping, to_mapping
from hymotion_ray.config.releases import released_network
from hymotion_ray.errors import CheckpointError, ConfigError
from hymotion_ray.formats.local_file import is_named, require_file, require_folder
from hymotion_ray.formats.models.body_folder import BODY_FOLDER, read_body, write_body
from hymotion_ray.formats.models.fingerprint import fingerprint_of
from hymotion_ray.formats.models.names import (
    NULL_NAMES,
    PREFIX,
    SPECIAL_NAMES,
    STAT_NAMES,
    dimensions_of,
)
from hymotion_ray.formats.models.new_folder import new_folder
from hymotion_ray.formats.models.prompt_template import TEMPLATE_FILE, read_template
from hymotion_ray.formats.models.release_config import read_release_config
from hymotion_ray.formats.models.stats_folder import (
    STATS_FOLDER,
    choose_stats,
    find_stats,
    write_stats,
)
from hymotion_ray.formats.models.tensors import (
    Tensors,
    check_tensors,
    may_hold_network,
    read_safetensors,
    read_torch_tensors,
)
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.skeleton import Skeleton

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
RELEASE_CONFIG_FILE, RELEASE_WEIGHTS_FILE = "config.yml", "latest.ckpt"
TEXT_FOLDER = "text"
RELEASE_LICENCE = "licence of the HY-Motion 1.0 release"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A model: config, weights, statistics, body and what its text encoder needs."""

    config: ModelConfig
    """What the model is."""
    network: Tensors
    """Weights by published name without `motion_transformer.`, in the dtype they were stored in."""
    null_vtxt_feat: torch.Tensor
    """(1, 1, V) learned vector of the null branch."""
    null_ctxt_input: torch.Tensor
    """(1, 1, C) learned context token of the null branch."""
    special_game_vtxt_feat: torch.Tensor | None = None
    """(1, 1, V) kept so that a release exports as it came; unused."""
    special_game_ctxt_feat: torch.Tensor | None = None
    """(1, 1, C) likewise."""
    mean: torch.Tensor
    """(201,) float32."""
    std: torch.Tensor
    """(201,) float32, as stored: values below 1e-3 are decoding's business."""
    skeleton: Skeleton | None = None
    """Rest positions of the model's own body; None: it brings none."""
    mesh: BodyMesh | None = None
    """Skin of the model's own body; None: it brings none."""
    prompt_template: str | None = None
    """System message of the released text encoder; None: it brings none."""
    folder: Path | None = None
    """Where it was read from; None: made in memory."""

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of all that decides its motions; the same in every form on disk.

        Reads every weight once (about 2 s for the full model), so it is computed when first asked.
        """
        arrays: dict[str, np.ndarray] = {}
        if self.skeleton is not None:
            arrays["skeleton"] = self.skeleton.rest
        if self.mesh is not None:
            arrays |= {
                f"mesh.{f.name}": getattr(self.mesh, f.name) for f in dataclasses.fields(self.mesh)
            }
        return fingerprint_of(self.config, self.tensors(), arrays)

    @property
    def variant(self) -> str:
        """`1.0`, `lite` or `other`, from the tensor shapes."""
        return dimensions_of(self.network).variant

    @property
    def text_files(self) -> tuple[Path, ...]:
        """Files of a text encoder that the model brings in its `text` folder, sorted."""
        if self.folder is None or not (self.folder / TEXT_FOLDER).is_dir():
            return ()
        return tuple(sorted(p for p in (self.folder / TEXT_FOLDER).rglob("*") if p.is_file()))

    def tensors(self) -> Tensors:
        """All tensors under their published names, as a weight file holds them."""
        named = {PREFIX + name: tensor for name, tensor in self.network.items()}
        for name in (*NULL_NAMES, *SPECIAL_NAMES, *STAT_NAMES):
            tensor = getattr(self, name)
            if tensor is not None:
                named[name] = tensor
        return named


def read_model(path: str | Path) -> Checkpoint:
    """The model at `path`: a release folder, a converted folder, or safetensors (folder or file).

    Raises `CheckpointError` for whatever is missing, damaged, of another kind or does not fit
    together; warns of unknown config keys that cannot change the result.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{path} is a file; give the folder that holds it ({path.parent}), or a "
                ".safetensors file with the published names"
            )
        return _read_loose(path.parent, path)
    require_folder(path, CheckpointError)
    has = {p.name for p in path.iterdir()}
    if CONFIG_FILE in has and (WEIGHTS_FILE in has or RELEASE_CONFIG_FILE not in has):
        return _read_converted(path)
    loose = [p.name for p in sorted(path.glob("*.safetensors")) if may_hold_network(p)]
    if RELEASE_CONFIG_FILE in has and (RELEASE_WEIGHTS_FILE in has or not loose):
        config, stats_dir = read_release_config(path / RELEASE_CONFIG_FILE)
        weights = path / RELEASE_WEIGHTS_FILE
        return _assemble(config, read_torch_tensors(weights), weights, stats_dir, optional=())
    if len(loose) == 1:
        return _read_loose(path, path / loose[0])
    raise CheckpointError(_no_model(path, loose))


def write_model(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write a converted folder, whole or not at all; equal checkpoints give equal bytes.

    Raises `OutputError` when `folder` holds something already or cannot be written.
    """
    with new_folder(Path(folder).expanduser()) as new:
        config = json.dumps(to_mapping(checkpoint.config), indent=2, ensure_ascii=False)
        (new / CONFIG_FILE).write_text(config + "\n", "utf-8")
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors().items()}
        save_file(tensors, new / WEIGHTS_FILE)
        # safetensors gives its file to its owner alone; a model folder is read by many.
        shutil.copymode(new / CONFIG_FILE, new / WEIGHTS_FILE)
        write_assets(checkpoint, new)


def write_assets(checkpoint: Checkpoint, folder: Path) -> None:
    """Write what stands beside the weights in either form: statistics, body, text encoder files."""
    write_stats(checkpoint.mean, checkpoint.std, folder / STATS_FOLDER)
    if checkpoint.skeleton is not None:
        write_body(checkpoint.skeleton, checkpoint.mesh, folder / BODY_FOLDER)
    if checkpoint.prompt_template is not None:
        (folder / TEMPLATE_FILE).write_bytes(checkpoint.prompt_template.encode())
    for file in checkpoint.text_files:
        assert checkpoint.folder is not None
        target = folder / file.relative_to(checkpoint.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _read_converted(folder: Path) -> Checkpoint:
    path = require_file(folder / CONFIG_FILE, CheckpointError)
    try:
        config = from_mapping(ModelConfig, json.loads(path.read_bytes()), "config")
    except ConfigError as error:
        raise CheckpointError(
            f"{path} is not the config of a hymotion-ray model: {error}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    weights = folder / WEIGHTS_FILE
    return _assemble(config, read_safetensors(weights), weights, None, optional=SPECIAL_NAMES)


def _read_loose(folder: Path, weights: Path) -> Checkpoint:
    """Safetensors with the published names: config from beside it, or from the released shapes."""
    tensors = read_safetensors(weights)
    if (folder / CONFIG_FILE).exists() and weights.name == WEIGHTS_FILE:
        return _read_converted(folder)
    stats_dir = None
    if (folder / RELEASE_CONFIG_FILE).exists():
        config, stats_dir = read_release_config(folder / RELEASE_CONFIG_FILE)
    else:
        network = {n.removeprefix(PREFIX): t for n, t in tensors.items() if n.startswith(PREFIX)}
        variant = dimensions_of(network).variant
        if variant == "other":
            raise CheckpointError(
                f"{weights} has no {RELEASE_CONFIG_FILE} beside it, and its shapes are not those "
                "of HY-Motion 1.0 or Lite, so its switches are not known; put its config.yml into "
                f"{folder}"
            )
        config = ModelConfig(network=released_network(variant))
    optional = SPECIAL_NAMES + STAT_NAMES
    return _assemble(config, tensors, weights, stats_dir, optional=optional)


def _assemble(
    config: ModelConfig,
    tensors: Tensors,
    weights: Path,
    stats_dir: str | None,
    *,
    optional: tuple[str, ...],
) -> Checkpoint:
    folder = weights.parent
    check_tensors(tensors, config, weights, optional=optional)
    network = {n.removeprefix(PREFIX): t for n, t in tensors.items() if n.startswith(PREFIX)}
    stats = choose_stats(tensors, weights, find_stats(folder, stats_dir))
    skeleton, mesh = None, None
    if is_named(folder / BODY_FOLDER):
        skeleton, mesh = read_body(require_folder(folder / BODY_FOLDER, CheckpointError))
    checkpoint = Checkpoint(
        config=_named(config, dimensions_of(network).variant),
        network=network,
        null_vtxt_feat=tensors["null_vtxt_feat"],
        null_ctxt_input=tensors["null_ctxt_input"],
        special_game_vtxt_feat=_present(tensors, "special_game_vtxt_feat"),
        special_game_ctxt_feat=_present(tensors, "special_game_ctxt_feat"),
        mean=stats["mean"],
        std=stats["std"],
        skeleton=skeleton,
        mesh=mesh,
        prompt_template=read_template(folder, CheckpointError),
        folder=folder,
    )
    for file in checkpoint.text_files:
        require_file(file, CheckpointError)
    return checkpoint


def _present(tensors: Tensors, name: str) -> torch.Tensor | None:
    """A game feature, or None where it is absent or zero, as exports write an absent one."""
    tensor = tensors.get(name)
    return tensor if tensor is not None and bool(tensor.any()) else None


def _named(config: ModelConfig, variant: str) -> ModelConfig:
    """Config with a name and licence, where the form on disk has no place for them."""
    if config.name != "unnamed" or variant == "other":
        return config
    name = {"1.0": "HY-Motion-1.0", "lite": "HY-Motion-1.0-Lite"}[variant]
    return dataclasses.replace(config, name=name, licence=RELEASE_LICENCE)


def _no_model(path: Path, loose: list[str]) -> str:
    if loose:
        return (
            f"{path} holds {len(loose)} safetensors files ({', '.join(loose[:8])}); give "
            "the one to read, as a file"
        )
    known = (CONFIG_FILE, RELEASE_CONFIG_FILE)
    inside = sorted(p.parent.name for name in known for p in path.glob(f"*/{name}"))
    hint = (
        f"; its folders {', '.join(inside[:8])} look like models: give one of them"
        if inside
        else ""
    )
    return (
        f"{path} holds no model{hint}; allowed: a folder with {RELEASE_CONFIG_FILE} and "
        f"{RELEASE_WEIGHTS_FILE} (release), with {CONFIG_FILE} and {WEIGHTS_FILE} (converted), or "
        "with one safetensors file of the published names"
    )
