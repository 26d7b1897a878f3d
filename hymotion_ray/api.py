"""The ray-free way in: load a model, encode texts, sample latents, decode motions.

Joins formats, text, model, flow and motion, and adds nothing of its own but defaults. Nothing is
downloaded unless a model is given as `hf:REPO@REVISION`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from hymotion_ray.config import Grid, ModelConfig, SamplingConfig
from hymotion_ray.config.sampling import Method
from hymotion_ray.errors import CheckpointError, ConfigError, TextEncoderError
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import OnStep, Sampler
from hymotion_ray.formats.models.checkpoint import CONFIG_FILE, Checkpoint, read_model
from hymotion_ray.formats.motions import load_motion, save_motion
from hymotion_ray.formats.prompts import PromptTable, read_prompts
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton
from hymotion_ray.text.condition import TextCondition

if TYPE_CHECKING:
    from hymotion_ray.text.encoder import TextEncoder

__all__ = [
    "Model",
    "Motion",
    "PromptTable",
    "Row",
    "TextCondition",
    "load_model",
    "load_motion",
    "model_folder",
    "read_prompts",
    "save_motion",
]

BUILT_IN = ("tiny",)
HUB_PREFIX = "hf:"
_ASSETS = Path(__file__).parent / "assets"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Model:
    """A loaded model. Not for several threads at once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: MotionMMDiT,
        *,
        llm_path: str | Path | None = None,
        clip_path: str | Path | None = None,
    ) -> None:
        """Use `load_model`. `network` holds the weights of `checkpoint` on its device."""
        self.checkpoint = checkpoint
        self.network = network
        self._llm_path = llm_path
        self._clip_path = clip_path

    @property
    def config(self) -> ModelConfig:
        """What the model is, with its defaults of sampling."""
        return self.checkpoint.config

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides its motions, apart from the text encoder."""
        return self.checkpoint.fingerprint

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.network.device

    @property
    def precision(self) -> str:
        """Number format of the network: float32, bfloat16 or float16."""
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def skeleton(self) -> Skeleton:
        """The model's own body, or the generic one."""
        return self.checkpoint.skeleton or generic_skeleton()

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler over the default grid."""
        return self.new_sampler()

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder for the model's statistics and body."""
        held = self.checkpoint
        return Decoder(held.mean, held.std, self.skeleton, mesh=held.mesh, fps=self.config.fps)

    @cached_property
    def encoder(self) -> TextEncoder:
        """The text encoder, loaded when first used; `TextEncoderError` when none is configured."""
        from hymotion_ray.text.load import load_encoder

        folder = self.checkpoint.folder
        if folder is None:
            raise TextEncoderError("the model was made in memory and brings no text encoder")
        return load_encoder(
            self.config.text,
            folder,
            device=self.device,
            llm_path=self._llm_path,
            clip_path=self._clip_path,
            template=self.checkpoint.prompt_template,
            expected_context_dim=self.config.network.ctxt_input_dim,
            expected_vector_dim=self.config.network.vtxt_input_dim,
        )

    def new_sampler(self, grid: Grid | None = None) -> Sampler:
        """A sampler over the cells of `grid` (None: the default ones)."""
        return Sampler(
            self.network,
            null_vector=self.checkpoint.null_vtxt_feat,
            null_context=self.checkpoint.null_ctxt_input,
            train_frames=self.config.train_frames,
            enable_ctxt_null_feat=self.config.enable_ctxt_null_feat,
            grid=grid,
        )

    @torch.no_grad()
    def velocity(
        self,
        x: Tensor,
        context: Tensor,
        vector: Tensor,
        t: Tensor,
        x_length: Tensor,
        context_length: Tensor,
    ) -> Tensor:
        """Velocity (B, L, 201) float32 on the model's device; frames past `x_length` are 0.

        x (B, L, 201) noisy motion, context (B, N, C) and vector (B, 1, V) text features, t (B,) in
        [0, 1], x_length and context_length (B,) whole numbers. Raises `ConfigError` for shapes that
        do not fit, and for more frames than the model's training window.
        """
        device = self.device
        x, context, vector, t = (
            torch.as_tensor(value, dtype=torch.float32, device=device)
            for value in (x, context, vector, t)
        )
        x_length, context_length = (
            torch.as_tensor(value, dtype=torch.int64, device=device)
            for value in (x_length, context_length)
        )
        self._check_inputs(x, context, vector, t, x_length, context_length)
        v = self.network(x, context, vector, t, x_length, context_length).float()
        valid = torch.arange(x.shape[1], device=device) < x_length[:, None]
        return v.masked_fill(~valid[..., None], 0.0)

    def encode(self, texts: str | Sequence[str]) -> TextCondition:
        """Text features of one prompt or several, in their order.

        Raises `TextEncoderError` when no text encoder is configured or it cannot encode.
        """
        return self.encoder.encode([texts] if isinstance(texts, str) else list(texts))

    def sample(
        self,
        condition: TextCondition,
        rows: Sequence[Row],
        num_steps: int | None = None,
        guidance_scale: float | None = None,
        method: Method | None = None,
        *,
        on_step: OnStep | None = None,
    ) -> list[Tensor]:
        """Latents (num_frames, 201) float32 on the CPU, one a row, in the order of `rows`.

        A row names its prompt in `condition`, its length and its seed. What is None comes from the
        model's own defaults. `on_step(done, total)` is called after each solver step and may raise
        to stop. Raises `ConfigError` for rows and settings outside the limits, `SamplingError` for
        results that are not finite.
        """
        return self.sampler.sample(
            condition.context,
            condition.vector,
            condition.length,
            rows,
            self._sampling(num_steps, guidance_scale, method),
            on_step=on_step,
        )

    @overload
    def decode(self, latents: Tensor, smooth: bool = True) -> Motion: ...

    @overload
    def decode(self, latents: Sequence[Tensor], smooth: bool = True) -> list[Motion]: ...

    def decode(
        self, latents: Tensor | Sequence[Tensor], smooth: bool = True
    ) -> Motion | list[Motion]:
        """The motion of one latent (L, 201), or the motions of a list of them.

        `smooth` filters rotations and translation over time; without it they are the network's own
        numbers. Raises `SamplingError` for a latent that is not finite or not (L, 201).
        """
        if isinstance(latents, Tensor) and latents.ndim == 2:
            return self._named(self.decoder.decode([latents], smooth=smooth)[0])
        return [self._named(m) for m in self.decoder.decode(list(latents), smooth=smooth)]

    def _named(self, motion: Motion) -> Motion:
        """The motion with the model's name and licence, which outputs carry."""
        origin = {"model": self.config.name, "licence": self.config.licence}
        return dataclasses.replace(motion, meta={**motion.meta, **origin})

    def _sampling(
        self, num_steps: int | None, guidance_scale: float | None, method: Method | None
    ) -> SamplingConfig:
        own = self.config.sampling
        return SamplingConfig(
            num_steps=own.num_steps if num_steps is None else num_steps,
            guidance_scale=own.guidance_scale if guidance_scale is None else guidance_scale,
            method=own.method if method is None else method,
        )

    def _check_inputs(self, *tensors: Tensor) -> None:
        x, context, vector, t, x_length, context_length = tensors
        rows = x.shape[0] if x.ndim else 0
        config = self.config.network
        frames, tokens = (v.shape[1] if v.ndim == 3 else 0 for v in (x, context))
        expected = {
            "x": (x, (rows, frames, config.input_dim)),
            "context": (context, (rows, tokens, config.ctxt_input_dim)),
            "vector": (vector, (rows, 1, config.vtxt_input_dim)),
            "t": (t, (rows,)),
            "x_length": (x_length, (rows,)),
            "context_length": (context_length, (rows,)),
        }
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape:
                raise ConfigError(
                    f"{name} has shape {tuple(tensor.shape)}; allowed: {shape}, with x (B, L, "
                    f"{config.input_dim}), context (B, N, {config.ctxt_input_dim}) and vector "
                    f"(B, 1, {config.vtxt_input_dim})"
                )
        for name, length, most in (("x", x_length, frames), ("context", context_length, tokens)):
            if rows and not 0 <= int(length.min()) <= int(length.max()) <= most:
                raise ConfigError(
                    f"{name}_length runs from {int(length.min())} to {int(length.max())}; "
                    f"allowed: 0 to {most}"
                )


def load_model(
    model: str | Path,
    device: str = "cpu",
    dtype: str = "float32",
    llm_path: str | Path | None = None,
    clip_path: str | Path | None = None,
) -> Model:
    """Load a model: `tiny`, a model folder in any form, or `hf:REPO@REVISION`.

    `device` as torch names it; `dtype` float32, bfloat16, float16, or auto (bfloat16 where a GPU
    has it, else float32). `llm_path` and `clip_path` are the folders of Qwen3 and CLIP, over those
    the model names; they are read when a text is first encoded. Raises `CheckpointError` when the
    model cannot be used and `ConfigError` for an unknown device or dtype.
    """
    place = _device(device)
    kind = _dtype(dtype, place)
    checkpoint = read_model(model_folder(model))
    with torch.device("meta"):
        network = MotionMMDiT(checkpoint.config.network, checkpoint.config.train_frames)
    # Copied out of the mapped file: where a tensor lies in memory can decide a product's last bits.
    weights = {n: w.to(place, kind, copy=True) for n, w in checkpoint.network.items()}
    network.load_state_dict(weights, strict=True, assign=True)
    network.requires_grad_(False).eval()
    return Model(checkpoint, network, llm_path=llm_path, clip_path=clip_path)


def model_folder(model: str | Path) -> Path:
    """The local folder (or safetensors file) of a model: built in, given, or fetched by `hf:`.

    The hub is contacted for `hf:` alone, and only for what its cache lacks. Raises
    `CheckpointError` when there is no such model.
    """
    if isinstance(model, str) and model.startswith(HUB_PREFIX):
        from hymotion_ray.formats.models.hub import fetch

        return fetch(model)
    if model in BUILT_IN:
        folder = _ASSETS / str(model)
        if not (folder / CONFIG_FILE).exists():
            raise CheckpointError(
                f"the built-in model {model!r} is not part of this installation ({folder} has no "
                f"{CONFIG_FILE}); install hymotion-ray again, or give a model folder"
            )
        return folder
    path = Path(model).expanduser()
    if not path.exists():
        raise CheckpointError(
            f"there is no model {str(model)!r}: no such folder, and the built-in models are "
            f"{', '.join(BUILT_IN)}. Give a release folder (config.yml and latest.ckpt), a "
            "converted folder, or hf:REPO@REVISION"
        )
    return path


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; allowed: cpu, cuda, cuda:N, mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices here; "
            "use device='cpu', or a torch build and driver that see the GPU"
        )
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype is {name!r}; allowed: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
