"""What a job would do, without a model, a cluster or an output folder. Ray-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.render.folder import existing_folder
from hymotion_ray.engine.render.plan import MAX_FRAMES, count_only, prompt_rows
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.motions import check_formats

STAGES = ("read", "rewrite", "plan", "encode", "sample", "decode", "export")


def describe(config: RenderConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Config, stages and counts, JSON-ready; raises what the job itself would raise so far."""
    check_formats(config.all_formats)
    existing_folder(open_store(config.out))
    counts = count_only(prompt_rows(config, MAX_FRAMES, say), config)
    stages = [s for s in STAGES if s != "rewrite" or config.rewrite is not None]
    return {
        "config": to_mapping(config),
        "stages": stages,
        "prompts": counts.prompts,
        "rejected": counts.rejected,
        "rejects": [r.to_mapping() for r in counts.first_rejects],
        "clips": counts.asked,
        "clips_by_num_frames": {str(n): k for n, k in sorted(counts.frames.items())},
        "exit_code": (1 if counts.prompts else 2) if counts.rejected else 0,
    }
