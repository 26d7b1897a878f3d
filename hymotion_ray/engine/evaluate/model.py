"""A model as something to evaluate: which folder it is, and its clips through the render job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hymotion_ray.config.evaluate import EvaluateConfig
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.evaluate.judgement import default_prompts
from hymotion_ray.engine.render.job import run_job
from hymotion_ray.engine.train.checkpoints import FOLDER as CHECKPOINTS
from hymotion_ray.engine.train.checkpoints import newest
from hymotion_ray.errors import CheckpointError, SamplingError
from hymotion_ray.formats.models.checkpoint import (
    CONFIG_FILE,
    RELEASE_CONFIG_FILE,
    RELEASE_WEIGHTS_FILE,
    WEIGHTS_FILE,
)
from hymotion_ray.formats.models.locate import BUILT_IN, HUB_PREFIX


def model_of(path: str, say: Callable[[str], None]) -> str | None:
    """The model that a path is, as `--model` takes it; None when it is something else.

    A training run is its newest whole checkpoint; `say` tells of torn ones. `CheckpointError` for a
    run without one.
    """
    if path in BUILT_IN or path.startswith(HUB_PREFIX):
        return path
    folder = Path(path).expanduser()
    if folder.is_file():
        return path if folder.suffix == ".safetensors" else None
    if (folder / CHECKPOINTS).is_dir():
        return str(_newest(folder, say))
    pairs = ((CONFIG_FILE, WEIGHTS_FILE), (RELEASE_CONFIG_FILE, RELEASE_WEIGHTS_FILE))
    is_model = any(all((folder / name).is_file() for name in pair) for pair in pairs)
    return path if is_model else None


def render_model(
    model: str, config: EvaluateConfig, out: str, say: Callable[[str], None]
) -> tuple[dict[str, Any], int]:
    """Render the test prompts with a model into `out`: what was rendered, and how many were not.

    The same folder again does only what is left. `SamplingError` when nothing came of it.
    """
    prompts = config.prompts or default_prompts()
    report = run_job(
        RenderConfig(
            prompts=(prompts,),
            model=model,
            out=out,
            num_seeds=config.num_seeds,
            num_steps=config.num_steps,
            guidance_scale=config.guidance_scale,
            preview_clips=0,
            id_policy="suffix",
            address=config.address,
        ),
        say,
    )
    if report.interrupted:
        raise KeyboardInterrupt
    if report.stopped or report.exit_code == 2:
        why = report.stopped or f"every prompt of {prompts} was rejected"
        raise SamplingError(f"the prompts could not be rendered with {model}: {why}")
    mapping = {
        "model": model,
        "prompts": os.path.basename(prompts) if config.prompts is None else prompts,
        "num_seeds": config.num_seeds,
        "num_steps": config.num_steps,
        "guidance_scale": config.guidance_scale,
    }
    return mapping, report.failed + report.counts.rejected


def _newest(run: Path, say: Callable[[str], None]) -> Path:
    found = newest(run, say)
    if found is None:
        raise CheckpointError(
            f"{run} is a training run without a whole checkpoint; train on, or give a model folder"
        )
    return found
