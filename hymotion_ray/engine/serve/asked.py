"""From a request to a job: defaults, limits, the model's own window. Knows no queue, no files."""

from __future__ import annotations

import hashlib
import json
import time

from hymotion_ray.config.serve import JobsConfig, RequestLimits
from hymotion_ray.engine.serve.jobs import Job, new_id
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.runner import Facts
from hymotion_ray.engine.serve.schema import MotionRequest
from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.language import looks_english
from hymotion_ray.formats.prompts.values import as_text, settle_length

DEFAULT_FRAMES, MIN_FRAMES = 150, 20


def make_job(
    request: MotionRequest,
    facts: Facts,
    *,
    model: str,
    key: str,
    job_id: str | None,
    limits: RequestLimits,
    jobs: JobsConfig,
) -> Job:
    """The job of a request; `Refusal` 413 for what is too long, 422 for what cannot be."""
    if len(request.text) > limits.max_text_chars:
        raise Refusal(
            413,
            "text_too_long",
            f"text has {len(request.text)} characters; allowed: {limits.max_text_chars}",
        )
    try:
        text = as_text(request.text)
        asked = settle_length(request.num_frames, request.duration, DEFAULT_FRAMES)
    except PromptError as error:
        too_long = error.code == "bad_length" and _is_long(request)
        raise Refusal(413 if too_long else 422, error.code, str(error)) from error
    if asked > facts.train_frames:
        raise Refusal(
            413,
            "clip_too_long",
            f"{asked} frames were asked for; allowed: {facts.train_frames} frames"
            f" ({facts.train_frames / facts.fps:g} s), the window this model was trained on",
        )
    num_frames = max(asked, min(MIN_FRAMES, facts.train_frames))
    seeds = _seeds(request, limits)
    warnings = [
        *(["clamped"] if num_frames != asked else []),
        *([] if looks_english(text) else ["not_english"]),
        *(["seeds_repeated"] if len(set(seeds)) < len(request.seeds or seeds) else []),
    ]
    guidance = request.guidance_scale
    now = time.time()
    job = Job(
        id=job_id or request.id or new_id(),
        key=key,
        model=model,
        text=text,
        num_frames=num_frames,
        num_steps=request.num_steps or facts.sampling.num_steps,
        guidance_scale=facts.sampling.guidance_scale if guidance is None else float(guidance),
        seeds=seeds,
        created=now,
        deadline=now + jobs.deadline_s,
        format=request.format or "npz",
        webhook=request.webhook,
        warnings=warnings,
    )
    job.fingerprint = _fingerprint(job)
    return job


def _is_long(request: MotionRequest) -> bool:
    asked = request.num_frames if request.num_frames is not None else (request.duration or 0) * 30
    return asked > MIN_FRAMES


def _seeds(request: MotionRequest, limits: RequestLimits) -> tuple[int, ...]:
    if request.seeds is not None and request.num_seeds is not None:
        raise Refusal(422, "bad_seeds", "seeds and num_seeds are both given; give one of the two")
    number = len(request.seeds) if request.seeds is not None else request.num_seeds or 1
    if number > limits.max_seeds:
        raise Refusal(
            413, "too_many_seeds", f"{number} clips were asked for; allowed: {limits.max_seeds}"
        )
    return tuple(dict.fromkeys(request.seeds)) if request.seeds else tuple(range(number))


def _fingerprint(job: Job) -> str:
    """What makes two requests the same."""
    fields = [
        job.key, job.model, job.text, job.num_frames, job.num_steps, job.guidance_scale,
        list(job.seeds), job.format, job.webhook,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]
