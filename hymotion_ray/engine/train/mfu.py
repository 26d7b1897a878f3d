"""Model FLOPs utilisation: what a step needs by formula, over what the device could do.

After Chowdhery et al. 2022 (PaLM), appendix B: operations that the model needs, whatever is
recomputed, over the device's peak. Knows no time and no tensors.
"""

from __future__ import annotations

import re

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.planning.flops import motion_flops, text_flops

_TERA = 1e12
# Dense bfloat16 products with float32 sums, TFLOP/s, by the makers' data sheets; float16 for the
# two that have no bfloat16 units.
_PEAKS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIE": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "A10G": 70,
    "A10": 125,
    "L40S": 362,
    "L4": 121,
    "V100": 125,
    "T4": 65,
}


def train_flops(config: NetworkConfig, num_rows: int, num_frames: int, num_tokens: int) -> int:
    """Of one forward and backward pass of B rows of L frames and N tokens, padding included.

    Three times the forward pass: the backward pass makes two products for each of it (Kaplan et al.
    2020, section 2.1). In training each row has its own text.
    """
    forward = text_flops(config, num_rows, num_tokens)
    return 3 * (forward + motion_flops(config, num_rows, num_frames, num_tokens))


def peak_flops(device_name: str) -> float | None:
    """Peak operations a second of a device by its name (`NVIDIA A100-SXM4-80GB`); None if unknown.

    A processor has none here: its peak hangs on clocks and vector units that its name does not say.
    """
    name = device_name.upper()
    for key, tera in _PEAKS.items():
        if re.search(rf"(?<![A-Z0-9]){key}(?![A-Z0-9])", name):
            return tera * _TERA
    return None
