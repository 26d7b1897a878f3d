"""The fingerprint of a model: one hash of everything that decides the motions it makes.

It covers the config, the weights, the statistics and the body, by content: not file names, times
or the form they were stored in. It does not cover names and licences, training settings, or the
text encoder's files and template, which have the encoder's own fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import torch

from hymotion_ray.config import ModelConfig
from hymotion_ray.config.fields import to_mapping

_FORM = "hymotion-ray model 1"
# Fields of ModelConfig and TextConfig that change no motion.
_SILENT = ("name", "licence", "cond_mask_prob", "enable_special_game_feat", "schema_version")
_SILENT_TEXT = ("llm_path", "clip_path")
# Of SamplingConfig: a model's own sampling is exact, so that these are always the same.
_SILENT_SAMPLING = ("guidance_interval", "null_every")


def fingerprint_of(
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    arrays: Mapping[str, np.ndarray],
) -> str:
    """Hex SHA-256 of a config, named tensors and named arrays.

    Tensors and arrays count by name, dtype, shape and bytes, in the order of their names. Memory:
    one tensor at a time, and nothing at all beyond the mapped pages for contiguous CPU tensors.
    """
    digest = hashlib.sha256()
    digest.update(_line(_FORM, _spoken_config(config)))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(_line(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(_line(name, array.dtype.str, list(array.shape)))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _spoken_config(config: ModelConfig) -> dict[str, object]:
    spoken = {key: value for key, value in to_mapping(config).items() if key not in _SILENT}
    spoken["text"] = {k: v for k, v in spoken["text"].items() if k not in _SILENT_TEXT}
    sampling = spoken["sampling"].items()
    spoken["sampling"] = {k: v for k, v in sampling if k not in _SILENT_SAMPLING}
    return spoken


def _line(*parts: object) -> bytes:
    return json.dumps(parts, sort_keys=True).encode() + b"\n"
