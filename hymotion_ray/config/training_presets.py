"""The presets of training: which network, which text encoder, which settings. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hymotion_ray.config.fields import nearest
from hymotion_ray.config.model import ModelConfig, TextConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.releases import released_network
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
        return _released_shape("lite", "lite")
    if name == "full":
        return _released_shape("full", "1.0")
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


def _of_release(preset: str, data: str, out: str) -> TrainConfig:
    """`lite` and `full`: they differ in the network alone."""
    return TrainConfig(
        data=data,
        out=out,
        preset=preset,
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
    "lite": partial(_of_release, "lite"),
    "full": partial(_of_release, "full"),
    "finetune": _finetune,
}


def _released_shape(preset: str, release: str) -> ModelConfig:
    """A network of a released model's shape, with weights of one's own: no release's licence."""
    return ModelConfig(
        network=released_network(release),
        text=TextConfig(kind="qwen_clip"),
        name=preset,
        licence="unknown",
    )
