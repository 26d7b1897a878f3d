"""Text to 3D human motion: load a model, sample and decode, or render through Ray.

The public names stand here and are loaded when first used: importing the package loads neither
torch nor ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hymotion_ray.api import Model, load_model
    from hymotion_ray.engine.render.notebook import render
    from hymotion_ray.errors import HyMotionError
    from hymotion_ray.flow.plan import Row
    from hymotion_ray.formats.motions import load_motion, save_motion
    from hymotion_ray.formats.prompts import PromptTable, read_prompts
    from hymotion_ray.motion.motion import Motion
    from hymotion_ray.text.condition import TextCondition

    __version__: str

__all__ = [
    "HyMotionError",
    "Model",
    "Motion",
    "PromptTable",
    "Row",
    "TextCondition",
    "__version__",
    "load_model",
    "load_motion",
    "read_prompts",
    "render",
    "save_motion",
]

_HOMES = {
    "HyMotionError": "hymotion_ray.errors",
    "Model": "hymotion_ray.api",
    "Motion": "hymotion_ray.motion.motion",
    "PromptTable": "hymotion_ray.formats.prompts",
    "Row": "hymotion_ray.flow.plan",
    "TextCondition": "hymotion_ray.text.condition",
    "load_model": "hymotion_ray.api",
    "load_motion": "hymotion_ray.formats.motions",
    "read_prompts": "hymotion_ray.formats.prompts",
    "render": "hymotion_ray.engine.render.notebook",
    "save_motion": "hymotion_ray.formats.motions",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("hymotion-ray")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
