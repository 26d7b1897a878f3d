"""Model FLOPs utilisation: what a step needs by formula, over what the device could do.

After Chowdhery et al. 2022 (PaLM), appendix B: operations that the model needs, whatever is
recomputed, over the device's peak of dense 16-bit products. Knows no time and no tensors.
"""

from __future__ import annotations

import functools
import re

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.flops import motion_flops, text_flops

_TERA = 1e12
_SLOWER_KINDS = {"H100 PCIE": 756.0, "H100 NVL": 835.0}
"""Boards of a catalogue's kind with a lower peak, TFLOP/s by the maker's data sheet."""


def train_flops(config: NetworkConfig, num_rows: int, num_frames: int, num_tokens: int) -> int:
    """Of one forward and backward pass of B rows of L frames and N tokens, padding included.

    Three times the forward pass: the backward pass makes two products for each of it (Kaplan et al.
    2020, section 2.1). In training each row has its own text. Motion's attention counts only where
    the mask lets it see, whatever the kernel computes beside that.
    """
    forward = text_flops(config, num_rows, num_tokens)
    forward += motion_flops(config, num_rows, num_frames, num_tokens)
    length = num_frames + config.insert_start_token
    unseen = length * length - _seen_pairs(config, length)
    return 3 * (forward - num_rows * config.num_layers * 4 * unseen * config.feat_dim)


def _seen_pairs(config: NetworkConfig, length: int) -> int:
    """Pairs of motion tokens (i, j) of which i sees j."""
    if config.mask_mode == "narrowband":
        band = min(config.band_frames, length - 1)
        return length * (2 * band + 1) - band * (band + 1)
    return length * (length + 1) // 2 if config.mask_mode == "causal" else length * length


def peak_flops(device_name: str) -> float | None:
    """Peak operations a second of a device by its name (`NVIDIA A100-SXM4-80GB`); None if unknown.

    A processor has none here: its peak hangs on clocks and vector units that its name does not say.
    """
    for name, tera in _peaks():
        if re.search(rf"(?<![A-Z0-9]){name}(?![A-Z0-9])", device_name.upper()):
            return tera * _TERA
    return None


@functools.cache
def _peaks() -> tuple[tuple[str, float], ...]:
    """Names as devices say them, longest first; the catalogue's are A100-80, RTX4090."""
    peaks = dict(_SLOWER_KINDS)
    for gpu in load_catalogue().gpus.values():
        family = gpu.name.upper().split("-")[0]
        peaks[re.sub(r"^RTX(?=\d)", "RTX ", family)] = gpu.tflops_16bit
    return tuple(sorted(peaks.items(), key=lambda entry: -len(entry[0])))
