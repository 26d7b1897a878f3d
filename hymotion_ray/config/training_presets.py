"""The presets of training: which network, which text encoder, which settings. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable

from hymotion_ray.config.fields import nearest
from hymotion_ray.config.model import ModelConfig, TextConfig
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.training import (
    DataConfig,
    ObjectiveConfig,
    OptimizerConfig,
    SavingConfig,
    TrainConfig,
    static_model,
    tiny_model,
)
from hymotion_ray.errors import ConfigError

PRESETS = ("debug", "tiny", "lite", "full", "finetune")
_QWEN_DIM, _CLIP_DIM = 4096, 768


def training_preset(name: str, *, data: str, out: str) -> TrainConfig:
    """The settings of a preset; `ConfigError` for an unknown one."""
    if name not in _SETTINGS:
        raise ConfigError(f"preset is {name!r}{nearest(name, PRESETS)}")
    return _SETTINGS[name](data, out)


def preset_model(name: str, text_dim: int) -> ModelConfig | None:
    """The model that a preset trains from scratch; None for `finetune`, which needs one to start.

    text_dim: width of the static word vectors of `debug` and `tiny`, context and vector alike.
    """
    if name == "debug":
        return static_model(text_dim, name="debug", feat_dim=32, num_layers=3, num_heads=2)
    if name == "tiny":
        return tiny_model(text_dim)
    if name == "lite":
        return _released_shape("lite", feat_dim=1024, num_layers=18, num_heads=16)
    if name == "full":
        return _released_shape("full", feat_dim=1280, num_layers=27, num_heads=20)
    return None


def _debug(data: str, out: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        out=out,
        preset="debug",
        max_steps=20,
        global_batch=4,
        micro_batch=4,
        log_every=2,
        input=DataConfig(frame_buckets=(40, 80, 120), window=64),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5, ema_decay=0.9),
        saving=SavingConfig(every_steps=10, keep=2, val_clips=8),
    )


def _tiny(data: str, out: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        out=out,
        preset="tiny",
        max_steps=30_000,
        global_batch=32,
        micro_batch=32,
        objective=ObjectiveConfig(text_noise=0.3, ignore_constant=True),
        input=DataConfig(crop=0.5),
        optimizer=OptimizerConfig(
            learning_rate=1e-3, beta2=0.98, warmup_steps=500, ema_decay=0.999
        ),
    )


def _full(data: str, out: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        out=out,
        preset="full",
        micro_batch=32,
        log_every=100,
        parallel=ParallelConfig(precision="bfloat16"),
    )


def _lite(data: str, out: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        out=out,
        preset="lite",
        micro_batch=32,
        log_every=100,
        parallel=ParallelConfig(precision="bfloat16"),
    )


def _finetune(data: str, out: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        out=out,
        preset="finetune",
        max_steps=5_000,
        micro_batch=8,
        log_every=20,
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=100, ema_decay=0.999),
        saving=SavingConfig(every_steps=500),
        parallel=ParallelConfig(precision="bfloat16", gradient_checkpointing=True),
    )


_SETTINGS: dict[str, Callable[[str, str], TrainConfig]] = {
    "debug": _debug,
    "tiny": _tiny,
    "lite": _lite,
    "full": _full,
    "finetune": _finetune,
}


def _released_shape(name: str, *, feat_dim: int, num_layers: int, num_heads: int) -> ModelConfig:
    """A network of a released model's shape, with weights of one's own: no release's licence."""
    return ModelConfig(
        network=NetworkConfig(
            feat_dim=feat_dim,
            num_layers=num_layers,
            num_heads=num_heads,
            ctxt_input_dim=_QWEN_DIM,
            vtxt_input_dim=_CLIP_DIM,
            mask_mode="narrowband",
            apply_rope_to_single_branch=False,
            time_factor=1000.0,
        ),
        text=TextConfig(kind="qwen_clip"),
        name=name,
        licence="unknown",
    )
