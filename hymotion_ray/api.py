"""The ray-free way in: load a model, encode texts, sample latents, decode motions.

Joins formats, text, model, flow and motion, and adds nothing of its own but defaults. Nothing is
downloaded unless a model is given as `hf:REPO@REVISION`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hymotion_ray.config import Grid, ModelConfig, NetworkConfig, SamplingConfig
from hymotion_ray.config.fields import from_mapping, shown, to_mapping
from hymotion_ray.config.sampling import FLOAT8_WORDS, Method, NoiseSource, Precision
from hymotion_ray.errors import ConfigError, TextEncoderError
from hymotion_ray.flow.network import Network
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import OnStep, Sampler
from hymotion_ray.formats.models.checkpoint import Checkpoint, read_model
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.formats.motions import load_motion, save_motion
from hymotion_ray.formats.prompts import PromptTable, read_prompts
from hymotion_ray.model.fused.choose import fused_or_plain
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.precision import device_precision, set_precision
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton
from hymotion_ray.text.condition import TextCondition

if TYPE_CHECKING:
    from hymotion_ray.model.fused.network import FusedMMDiT
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


class Model:
    """A loaded model. Not for several threads at once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: MotionMMDiT,
        *,
        llm_path: str | Path | None = None,
        clip_path: str | Path | None = None,
        precision_reason: str = "asked for",
        float8: bool = False,
    ) -> None:
        """Use `load_model`. `network` holds the weights of `checkpoint` on its device.

        `float8`: samplers do motion's products in float8.
        """
        self._float8 = float8
        self.precision_reason = precision_reason
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
        """Number format of the network: float32, bfloat16, float16, or float8 when sampling."""
        if self._float8:
            return "float8"
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def skeleton(self) -> Skeleton:
        """The model's own body, or the generic one."""
        return self.checkpoint.skeleton or generic_skeleton()

    @cached_property
    def _sampling_network(self) -> MotionMMDiT | FusedMMDiT:
        """The network as samplers use it: on fused kernels where they can serve it."""
        return fused_or_plain(self.network, float8=self._float8)

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

    def new_sampler(self, grid: Grid | None = None, noise_source: NoiseSource = "cpu") -> Sampler:
        """A sampler over the cells of `grid` (None: the default ones).

        `noise_source` "gpu" draws noise as the released Lite model does, on the GPU: other noise
        for the same seed. `ConfigError` where the model is on none.
        """
        return self.sampler_over(self._sampling_network, grid, noise_source)

    def sampler_over(
        self,
        network: Network,
        grid: Grid | None = None,
        noise_source: NoiseSource = "cpu",
        text_window_bytes: int | None = None,
    ) -> Sampler:
        """A sampler over `network` in place of the model's own, such as a share of it.

        `text_window_bytes` bounds the text computed ahead (None: by the device).
        """
        return Sampler(
            network,
            null_vector=self.checkpoint.null_vtxt_feat,
            null_context=self.checkpoint.null_ctxt_input,
            train_frames=self.config.train_frames,
            enable_ctxt_null_feat=self.config.enable_ctxt_null_feat,
            grid=grid,
            text_window_bytes=text_window_bytes,
            noise_source=noise_source,
        )

    @torch.no_grad()
    def velocity(
        self,
        x: ArrayLike | Tensor,
        context: ArrayLike | Tensor,
        vector: ArrayLike | Tensor,
        t: ArrayLike | Tensor,
        x_length: ArrayLike | Tensor,
        context_length: ArrayLike | Tensor,
    ) -> Tensor:
        """Velocity (B, L, 201) float32 on the model's device; frames past `x_length` are 0.

        x (B, L, 201) noisy motion, context (B, N, C) and vector (B, 1, V) text features, t (B,) in
        [0, 1], x_length and context_length (B,) whole numbers; tensors, numpy arrays or lists.
        Raises `ConfigError` for types and shapes that do not fit, and for more frames than the
        model's training window.
        """
        arrays = {"x": x, "context": context, "vector": vector, "t": t}
        lengths = {"x_length": x_length, "context_length": context_length}
        given = {n: _numbers(v, n, torch.float32, self.device) for n, v in arrays.items()}
        given |= {n: _numbers(v, n, torch.int64, self.device) for n, v in lengths.items()}
        _check_inputs(given, self.config.network)
        x, context, vector, t, x_length, context_length = given.values()
        if not len(x):
            return x
        v = self.network(x, context, vector, t, x_length, context_length).float()
        valid = torch.arange(x.shape[1], device=self.device) < x_length[:, None]
        return v.masked_fill(~valid[..., None], 0.0)

    def encode(self, texts: str | Sequence[str]) -> TextCondition:
        """Text features of one prompt or several, in their order.

        Raises `TextEncoderError` when no text encoder is configured or it cannot encode, and
        `ConfigError` for what is no text.
        """
        listed = [texts] if isinstance(texts, str) else _list(texts, "texts", "a text or several")
        for i, text in enumerate(listed):
            if not isinstance(text, str):
                raise ConfigError(f"text {i} is {type(text).__name__}; allowed: str")
        return self.encoder.encode(listed)

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
        if isinstance(rows, Row):
            raise ConfigError("rows is a single Row; allowed: a list of them, as in [Row(...)]")
        if not isinstance(condition, TextCondition):
            raise ConfigError(
                f"condition is {shown(condition)}; allowed: a TextCondition, as encode gives"
            )
        return self.sampler.sample(
            condition.context,
            condition.vector,
            condition.length,
            _list(rows, "rows", "a list of Row"),
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
        numbers. Raises `SamplingError` for a latent that is not finite or not (L, 201), and
        `ConfigError` for what is no array.
        """
        is_one = getattr(latents, "ndim", 0) == 2
        allowed = "a latent (L, 201) or a list of them"
        listed = [latents] if is_one else _list(latents, "latents", allowed)
        tensors = [_numbers(v, f"latent {i}", torch.float32, "cpu") for i, v in enumerate(listed)]
        motions = [self._named(m) for m in self.decoder.decode(tensors, smooth=smooth)]
        return motions[0] if is_one else motions

    def _named(self, motion: Motion) -> Motion:
        """The motion with the model's name and licence, which outputs carry."""
        origin = {"model": self.config.name, "licence": self.config.licence}
        if self._float8:
            origin["approximation"] = FLOAT8_WORDS
        return dataclasses.replace(motion, meta={**motion.meta, **origin})

    def _sampling(
        self, num_steps: int | None, guidance_scale: float | None, method: Method | None
    ) -> SamplingConfig:
        asked = {"num_steps": num_steps, "guidance_scale": guidance_scale, "method": method}
        own = to_mapping(self.config.sampling)
        changed = own | {name: value for name, value in asked.items() if value is not None}
        return from_mapping(SamplingConfig, changed, "sampling")


def load_model(
    model: str | Path,
    device: str = "cpu",
    dtype: str = "float32",
    llm_path: str | Path | None = None,
    clip_path: str | Path | None = None,
) -> Model:
    """Load a model: `tiny`, a model folder in any form, or `hf:REPO@REVISION`.

    `device` as torch names it; `dtype` float32, bfloat16, float16, or auto: what suits the device,
    with the reason in the model's `precision_reason`; or float8, an approximate mode of GPUs.
    `llm_path` and `clip_path` are the folders of Qwen3 and CLIP, over those the model names; they
    are read when a text is first encoded.
    Raises `CheckpointError` when the model cannot be used and `ConfigError` for an unknown device
    or dtype.
    """
    place = _device(device)
    choice = device_precision(_precision(dtype), place)
    checkpoint = read_model(model_folder(model))
    with torch.device("meta"):
        network = MotionMMDiT(checkpoint.config.network, checkpoint.config.train_frames)
    # Copied out of the mapped file: where a tensor lies in memory can decide a product's last bits.
    weights = {n: w.to(place, choice.dtype, copy=True) for n, w in checkpoint.network.items()}
    network.load_state_dict(weights, strict=True, assign=True)
    network.requires_grad_(False).eval()
    set_precision(network, choice)
    return Model(
        checkpoint,
        network,
        llm_path=llm_path,
        clip_path=clip_path,
        precision_reason=choice.reason,
        float8=choice.name == "float8",
    )


def _list(values: object, name: str, allowed: str) -> list[Any]:
    """What was given as a list; `ConfigError` for what holds no things in order."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise ConfigError(f"{name} is {shown(values)}; allowed: {allowed}")
    return list(values)


def _numbers(
    values: ArrayLike, name: str, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """An array of numbers as a tensor of `dtype`; a float is no whole number, a mask no length."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name} is {type(values).__name__} and no array of numbers ({error})"
        ) from error
    whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
    if tensor.is_complex() or (dtype == torch.int64 and not whole):
        allowed = "whole numbers, lengths and not masks" if dtype == torch.int64 else "real numbers"
        raise ConfigError(f"{name} is {tensor.dtype}; allowed: {allowed}")
    return tensor.to(device, dtype)


def _check_inputs(given: dict[str, Tensor], config: NetworkConfig) -> None:
    """Shapes of `Model.velocity`'s inputs against each other and the network."""
    x, context = given["x"], given["context"]
    rows = x.shape[0] if x.ndim else 0
    frames, tokens = (v.shape[1] if v.ndim == 3 else 0 for v in (x, context))
    expected = {
        "x": (rows, max(frames, 1), config.input_dim),
        "context": (rows, tokens, config.ctxt_input_dim),
        "vector": (rows, 1, config.vtxt_input_dim),
        "t": (rows,),
        "x_length": (rows,),
        "context_length": (rows,),
    }
    for name, shape in expected.items():
        if tuple(given[name].shape) != shape:
            raise ConfigError(
                f"{name} has shape {tuple(given[name].shape)}; allowed: {shape}, with x (B, L, "
                f"{config.input_dim}), context (B, N, {config.ctxt_input_dim}) and vector "
                f"(B, 1, {config.vtxt_input_dim})"
            )
    for name, most in (("x_length", frames), ("context_length", tokens)):
        length = given[name]
        if rows and not 0 <= int(length.min()) <= int(length.max()) <= most:
            raise ConfigError(
                f"{name} runs from {int(length.min())} to {int(length.max())}; allowed: 0 to {most}"
            )


def _device(name: str) -> torch.device:
    """The device of this name, when torch can compute on it here."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device is {name!r}; allowed: cpu, cuda, cuda:N, mps, xpu") from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device is {name!r}, but torch cannot compute on it here "
            f"({str(error).splitlines()[0]}); torch sees {torch.cuda.device_count()} CUDA devices. "
            "Use device='cpu', or a torch build and driver that see the device"
        ) from error
    return device


def _precision(name: str) -> Precision:
    if name not in get_args(Precision):
        raise ConfigError(f"dtype is {name!r}; allowed: {', '.join(get_args(Precision))}")
    return cast("Precision", name)
