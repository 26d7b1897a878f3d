"""What a model folder says of itself, beside its weights. Knows no tensors and no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hymotion_ray.config.fields import require
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.sampling import SamplingConfig

MODEL_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Which text encoder the model was trained with."""

    kind: Literal["qwen_clip", "static"] = "qwen_clip"
    """qwen_clip: Qwen3 and CLIP-L from local folders; static: word vectors in the model folder."""
    max_context_tokens: int = 128
    """Context tokens kept a prompt."""
    max_vector_tokens: int = 77
    """Tokens the vector encoder reads."""
    llm_path: str | None = None
    """Folder of the Qwen3 model; None: given at load time."""
    clip_path: str | None = None
    """Folder of the CLIP text model; None: given at load time."""

    def __post_init__(self) -> None:
        require(self.kind in ("qwen_clip", "static"), "text.kind", self.kind, "qwen_clip or static")
        require(
            1 <= self.max_context_tokens <= 4096,
            "text.max_context_tokens",
            self.max_context_tokens,
            "1 to 4096",
        )
        require(
            3 <= self.max_vector_tokens <= 4096,
            "text.max_vector_tokens",
            self.max_vector_tokens,
            "3 to 4096, start and end token included",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model: network, defaults of sampling, text encoder, and how motion frames are meant."""

    network: NetworkConfig
    """Shape and switches of the network."""
    text: TextConfig = field(default_factory=TextConfig)
    """The text encoder it was trained with."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Defaults of sampling: exact ones, since approximate modes are a job's own choice."""
    name: str = "unnamed"
    """Short name that outputs carry."""
    licence: str = "unknown"
    """Licence of the weights, written into every output."""
    train_frames: int = 360
    """Frames of the training window: noise is drawn for this many, and no clip is longer."""
    fps: int = 30
    """Frames a second."""
    enable_ctxt_null_feat: bool = True
    """Whether the null branch replaces the context too, not only the vector."""
    enable_special_game_feat: bool = False
    """Kept so that a release exports as it came; sampling does not use it."""
    cond_mask_prob: float = 0.1
    """Chance of dropping the condition in training."""
    schema_version: int = MODEL_SCHEMA_VERSION
    """Version of this form on disk."""

    def __post_init__(self) -> None:
        require(
            self.schema_version == MODEL_SCHEMA_VERSION,
            "schema_version",
            self.schema_version,
            f"{MODEL_SCHEMA_VERSION} (this release of hymotion-ray); convert again with `import`",
        )
        require(
            not self.sampling.shortcuts,
            "sampling",
            ", ".join(self.sampling.shortcuts),
            "exact sampling; approximate modes are asked for by a render job, not by a model",
        )
        require(1 <= self.train_frames <= 100_000, "train_frames", self.train_frames, "1 to 100000")
        require(self.fps == 30, "fps", self.fps, "30")
        require(0 <= self.cond_mask_prob <= 1, "cond_mask_prob", self.cond_mask_prob, "0 to 1")
        for label in ("name", "licence"):
            text = getattr(self, label)
            require(
                0 < len(text) <= 1000 and text.isprintable(), label, text,
                "1 to 1000 printable characters on one line",
            )  # fmt: skip
