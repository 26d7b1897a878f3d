"""The tensors of a weight file: read, sorted into their parts, and checked strictly.

Knows both containers (torch file, safetensors) and the published names. A name that is missing,
unexpected or of another shape is an error that lists them and says the likely cause; nothing is
ever filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from hymotion_ray.config import ModelConfig, NetworkConfig
from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.local_file import require_file
from hymotion_ray.formats.models.names import (
    IGNORED_PREFIXES,
    NULL_NAMES,
    PREFIX,
    SPECIAL_NAMES,
    STAT_NAMES,
    Shape,
    dimensions_of,
    feature_shapes,
    network_shapes,
)
from hymotion_ray.formats.torch_file import read_torch_file

Tensors = dict[str, torch.Tensor]

_STATE_KEY = "model_state_dict"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STAT_DTYPES = (*_DTYPES, torch.float64)
_MOST_LISTED = 10
# Switches of the config that add tensors, by a part of the tensors' names.
_SWITCHES = {
    "start_token": "insert_start_token",
    "long_skip_net": "with_long_skip_connection",
    "_qkv.bias": "qkv_bias",
    "individual_token_refiner": "text_refiner_cfg.num_layers",
}


def read_torch_tensors(path: Path) -> Tensors:
    """The `model_state_dict` of a `latest.ckpt`, memory-mapped."""
    content = read_torch_file(path, error=CheckpointError)
    if not isinstance(content, dict) or not isinstance(content.get(_STATE_KEY), dict):
        holds = (
            f"the keys {_some(content)}" if isinstance(content, dict) else type(content).__name__
        )
        raise CheckpointError(
            f"{path} holds no {_STATE_KEY!r}, but {holds}; allowed: a checkpoint of a HY-Motion "
            f"release, a dict whose {_STATE_KEY!r} maps names to tensors"
        )
    return _only_tensors(content[_STATE_KEY], path)


def read_safetensors(path: Path) -> Tensors:
    """All tensors of a safetensors file, memory-mapped."""
    require_file(path, CheckpointError)
    try:
        return _only_tensors(load_file(path), path)
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes) is not a safetensors file, or is damaged or "
            f"cut short: {error}. Copy or download it again"
        ) from error


def may_hold_network(path: Path) -> bool:
    """Whether a safetensors file holds published names, by its header; True where it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            return any(name.startswith(PREFIX) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return True


def _only_tensors(state: Mapping[Any, Any], path: Path) -> Tensors:
    named = {str(name): tensor for name, tensor in state.items()}
    tensors = {n: t for n, t in named.items() if not n.startswith(IGNORED_PREFIXES)}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path}: {name} is a {type(tensor).__name__}, not a tensor")
        plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
        if not plain:
            raise CheckpointError(
                f"{path}: {name} is a sparse, quantised or empty-handed (meta) tensor; allowed: "
                "plain tensors, saved from the CPU in float32, bfloat16 or float16"
            )
    return {name: tensor.detach() for name, tensor in tensors.items()}


def check_tensors(
    tensors: Tensors, config: ModelConfig, path: Path, *, optional: tuple[str, ...]
) -> None:
    """Check names, shapes and dtypes against `config`; only names in `optional` may be absent.

    Raises one `CheckpointError` for all of them. Of statistics, names and dtypes are checked.
    """
    shapes = {PREFIX + name: shape for name, shape in network_shapes(config.network).items()}
    shapes.update(feature_shapes(config.network))
    missing = [n for n in (*shapes, *STAT_NAMES) if n not in tensors and n not in optional]
    unexpected = [n for n in tensors if n not in shapes and n not in STAT_NAMES]
    wrong = [n for n, s in shapes.items() if n in tensors and tuple(tensors[n].shape) != s]
    if missing and set(missing) <= {*NULL_NAMES} and not (unexpected or wrong):
        raise CheckpointError(
            f"{path} lacks {' and '.join(missing)}: the learned null features that guidance needs. "
            "They are not replaced by anything; ask for the whole checkpoint, with all top-level "
            f"tensors ({', '.join(NULL_NAMES + SPECIAL_NAMES + STAT_NAMES)})"
        )
    if missing or unexpected or wrong:
        parts = [
            _listed("missing", missing),
            _listed("unexpected", unexpected),
            _listed("of the wrong shape", [_shape_line(n, tensors[n], shapes[n]) for n in wrong]),
        ]
        raise CheckpointError(
            f"{path} does not fit its config. {'; '.join(p for p in parts if p)}. "
            f"{_cause(tensors, config.network, missing, unexpected)}"
        )
    dtypes = dict.fromkeys(shapes, _DTYPES) | dict.fromkeys(STAT_NAMES, _STAT_DTYPES)
    odd = [
        f"{n} ({tensors[n].dtype})"
        for n, allowed in dtypes.items()
        if n in tensors and tensors[n].dtype not in allowed
    ]
    if odd:
        raise CheckpointError(
            f"{path}: {_listed('of a dtype that is not read', odd)}; allowed: "
            f"{', '.join(str(d).removeprefix('torch.') for d in _DTYPES)}"
        )


def _cause(
    tensors: Tensors, config: NetworkConfig, missing: list[str], unexpected: list[str]
) -> str:
    """The likely cause, in one sentence."""
    renamed = _renamed_prefix(missing, unexpected)
    if renamed:
        return renamed
    network = {n.removeprefix(PREFIX): t for n, t in tensors.items() if n.startswith(PREFIX)}
    if not network:
        return (
            f"Likely cause: this is no HY-Motion checkpoint; none of its names starts with {PREFIX}"
        )
    held = dimensions_of(network)
    fields = ("feat_dim", "num_layers", "num_heads", "ctxt_input_dim", "vtxt_input_dim")
    differ = [f for f in fields if getattr(held, f) not in (None, getattr(config, f))]
    if differ:
        lines = [
            f"{f} is {getattr(config, f)} in the config and {getattr(held, f)} in the weights"
            for f in differ
        ]
        named = (
            ""
            if held.variant == "other"
            else f" (the weights have the shapes of HY-Motion {held.variant})"
        )
        return (
            f"Likely cause: config and weights belong to different models{named}, or whole blocks "
            f"are missing: {', '.join(lines)}"
        )
    for part, switch in _SWITCHES.items():
        if all(part in name for name in missing + unexpected):
            return f"Likely cause: {switch} in the config is not what the weights were trained with"
    return (
        "Likely cause: the file was edited or is of another version; take config and "
        "weights of one release"
    )


def _renamed_prefix(missing: list[str], unexpected: list[str]) -> str:
    """Says so when the missing names stand there under another prefix."""
    wanted = [name for name in missing if name.startswith(PREFIX)]
    if not wanted or not unexpected:
        return ""
    ending = wanted[0].removeprefix(PREFIX)
    found = [name for name in unexpected if name.endswith(ending)]
    if not found:
        return ""
    prefix = min(found, key=len).removesuffix(ending)
    if not all(prefix + name.removeprefix(PREFIX) in unexpected for name in wanted):
        return ""
    return (
        f"Likely cause: the names carry the prefix {prefix!r} where {PREFIX!r} is expected (as "
        "after saving a wrapped module); rename them and save again"
    )


def _listed(what: str, names: list[str]) -> str:
    return f"{len(names)} {what}: {_some(names)}" if names else ""


def _some(names: Any) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")


def _shape_line(name: str, tensor: torch.Tensor, shape: Shape) -> str:
    return f"{name} {tuple(tensor.shape)} instead of {shape}"
