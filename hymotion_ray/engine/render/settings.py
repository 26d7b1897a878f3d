"""What every stage of a render job needs to know; travels to the workers as one small value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hymotion_ray.config.grid import Grid
from hymotion_ray.config.model import TextConfig
from hymotion_ray.config.render import Axis, Layout
from hymotion_ray.config.sampling import NoiseSource, Precision, SamplingConfig
from hymotion_ray.config.split import Offload, SplitConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.motion.skeleton import Skeleton


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """Settings of one render job, resolved."""

    model: str
    """Built-in name or model folder, as every node sees it."""
    model_name: str
    """Name that outputs carry."""
    licence: str
    """Licence of the weights, carried by outputs."""
    fps: int
    """Frames a second."""
    skeleton: Skeleton
    """Rest positions of the body that outputs are for."""
    text_config: TextConfig
    """The text encoder the model was trained with."""
    template: str | None
    """The model's prompt template."""
    text: TextPlacement
    """Where and how the text encoder runs; the device is each process's own."""
    ctxt_input_dim: int
    """Width of the context features that the network takes."""
    vtxt_input_dim: int
    """Width of the vector feature that the network takes."""
    sampling: SamplingConfig
    """How clips are sampled; step count and guidance are each row's own."""
    approximation: str
    """What makes the clips approximate, in words; empty when they are exact."""
    precision: Precision
    """Number format asked for."""
    noise: NoiseSource
    """Whose generator draws the noise."""
    split: SplitConfig | None
    """How a group of processes samples together; None: each process alone."""
    offload: Offload
    """Whether weights stay on the device."""
    exact: bool
    """Whether a clip that cannot be sampled in the way of all others fails."""
    grid: Grid
    """Cells that clips are sampled in."""
    cpu_threads: int
    """Threads of a sampler on CPU."""
    llm_path: str | None
    """Folder of the Qwen3 model."""
    clip_path: str | None
    """Folder of the CLIP text model."""
    out: str
    """Output folder or URL."""
    formats: tuple[str, ...]
    """Files a clip."""
    axis: Axis
    """Up axis of npz files."""
    layout: Layout
    """Files or shards."""
    hashed_folders: bool
    """Whether a hash byte stands between group and file name."""

    def file_stem(self, group: str, stem: str) -> str:
        """Path below the output folder, without suffix, of a clip's files."""
        parts = ["motions"]
        if group:
            parts.append(group)
        if self.hashed_folders:
            parts.append(hashlib.sha256(stem.encode()).hexdigest()[:2])
        return "/".join([*parts, stem])
