"""What would fit where a sampler ran out of memory for good, as flags of `render`."""

from __future__ import annotations

from hymotion_ray.config.grid import GridCell
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.planning.presets import smallest_preset


def flags_that_fit(settings: StageSettings) -> str:
    """For a sampler whose weights cannot leave its device, by a split or by float8."""
    if settings.split is not None:
        return (
            f"leave out --split {settings.split} and take --offload layers --rows 1, or split over "
            "more GPUs"
        )
    return (
        "leave out --precision float8, whose weights cannot wait in host memory, and take "
        "--offload layers --rows 1"
    )


def card_that_fits(
    settings: StageSettings,
    network: NetworkConfig,
    cell: GridCell,
    precision: str,
    device_bytes: int,
) -> str:
    """For clips of `cell` whose weights wait in host memory already, on a device of so much memory.

    `precision` is the format of the weights; `device_bytes` is 0 for a CPU.
    """
    preset = smallest_preset(
        network,
        cell,
        has_encoder=settings.text_config.kind != "static",
        precision="float32" if precision == "float32" else "bfloat16",
        above_bytes=device_bytes,
    )
    shorter = f"ask for clips below {cell.frames / settings.fps:g} s"
    on_cpu = "render on CPUs (--sampler-gpus 0)"
    if preset is None:
        return f"{shorter}, or {on_cpu}"
    gb = preset.name.removeprefix("card-").removesuffix("gb")
    return (
        f"render on a card of {gb} GB or more with --preset {preset.name}, {shorter}, or {on_cpu}"
    )
