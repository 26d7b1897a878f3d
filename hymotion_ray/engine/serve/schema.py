"""What requests may hold and what answers look like. Unknown fields are errors. Knows no queue."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StrictStr

from hymotion_ray.engine.serve.jobs import ID_PATTERN, ClipRecord, Job

MAX_SEED = 2**63 - 1


def _whole(value: object) -> object:
    """JSON has one kind of number: 5.0 is the whole number 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# "Below": the document's limits are floats, which hold 2**63 but not the number before it.
Seed = Annotated[int, Field(strict=True, ge=0, lt=MAX_SEED + 1), BeforeValidator(_whole)]
NumSeeds = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)]
NumSteps = Annotated[int, Field(strict=True, ge=1, le=1000), BeforeValidator(_whole)]
Format = Literal["npz", "glb", "bvh", "json", "html", "viewer"]
JobState = Literal["queued", "running", "succeeded", "failed", "canceled", "expired"]

# Told to clients; what is longer is refused where the other rules of lengths are.
_UNDER_5000_FRAMES: dict[str, JsonValue] = {"exclusiveMaximum": 5000}
# Half a frame is none, by `round`.
_FRAMES_IN_SECONDS: dict[str, JsonValue] = {"exclusiveMinimum": 0.5 / 30, "exclusiveMaximum": 166.6}
NumFrames = Annotated[
    int,
    Field(strict=True, gt=0, json_schema_extra=_UNDER_5000_FRAMES),
    BeforeValidator(_whole),
]


class MotionRequest(BaseModel):
    """One sentence, and how its motion is wanted."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr = Field(min_length=1, examples=["a person walks forward and waves"])
    """The prompt, in English."""
    duration: Annotated[Number, Field(gt=0, json_schema_extra=_FRAMES_IN_SECONDS)] | None = Field(
        default=None, examples=[3.0]
    )
    """Seconds; 5 unless given. Less than the model makes is lengthened, with a warning."""
    num_frames: NumFrames | None = None
    """Frames at 30 a second, instead of `duration`."""
    seeds: list[Seed] | None = Field(default=None, min_length=1)
    """One clip a seed; equal requests with equal seeds give equal motion."""
    num_seeds: NumSeeds | None = None
    """Clips of the seeds 0, 1, ..., instead of `seeds`."""
    model: StrictStr | None = None
    """One of `/v1/models`; the first of them unless given."""
    guidance_scale: Annotated[Number, Field(ge=0, le=100)] | None = None
    """Classifier-free guidance; the model's own unless given."""
    num_steps: NumSteps | None = None
    """Solver steps; the model's own unless given."""
    format: Format | None = None
    """What `/result` gives when its request names no format."""
    id: StrictStr | None = Field(default=None, pattern=ID_PATTERN)
    """The job's id; the same request with the same id is one job."""
    webhook: StrictStr | None = None
    """https URL that is told when the job ends."""


class ErrorBody(BaseModel):
    """What went wrong."""

    code: str
    """A short stable word."""
    message: str
    """What was given, what is allowed, what to do."""
    fields: list[dict[str, str]] | None = None
    """For 422: `field` and `message` of each fault."""


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorBody
    request_id: str


class ClipView(BaseModel):
    """One clip of a job."""

    seed: int
    state: JobState
    bytes: int = 0
    sha256: str = ""
    info: dict[str, Any] = {}
    error: dict[str, str] | None = None


class JobView(BaseModel):
    """A job as clients see it. Times are Unix seconds."""

    id: str
    object: Literal["motion"] = "motion"
    state: JobState
    model: str
    text: str
    num_frames: int
    duration: float
    seeds: list[int]
    num_steps: int
    guidance_scale: float
    format: Format
    created: float
    started: float | None
    ended: float | None
    expires: float
    """When it becomes `expired` unless it has ended."""
    progress: float
    """0 to 1."""
    eta_s: float | None = None
    """Seconds until its end, as far as can be said."""
    paused: bool
    pool: str
    clips: list[ClipView]
    warnings: list[str]
    truncated: str
    error: dict[str, str] | None
    result_url: str | None
    """Where the clips are, once there are any."""


class JobList(BaseModel):
    """A page of jobs, the newest first."""

    object: Literal["list"] = "list"
    data: list[JobView]
    next: str | None
    """`after` of the next page."""


class ModelView(BaseModel):
    """A model that requests may name."""

    id: str
    object: Literal["model"] = "model"
    licence: str
    max_frames: int
    fps: int
    num_steps: int
    guidance_scale: float
    fingerprint: str
    pools: list[dict[str, Any]]
    ready: bool


class ModelList(BaseModel):
    """The models."""

    object: Literal["list"] = "list"
    data: list[ModelView]


class ReadyView(BaseModel):
    """Whether requests are taken, and if not, why."""

    ready: bool
    reason: str
    reasons: list[str]


def clip_view(clip: ClipRecord) -> ClipView:
    """A clip as clients see it."""
    return ClipView(
        seed=clip.seed,
        state=clip.state,
        bytes=clip.bytes,
        sha256=clip.sha256,
        info=clip.info,
        error=clip.error,
    )


def job_view(job: Job) -> JobView:
    """A job as clients see it."""
    has_result = any(clip.state == "succeeded" for clip in job.clips)
    gone = job.state == "expired"
    return JobView(
        id=job.id,
        state=job.state,
        model=job.model,
        text=job.text,
        num_frames=job.num_frames,
        duration=job.num_frames / 30,
        seeds=list(job.seeds),
        num_steps=job.num_steps,
        guidance_scale=job.guidance_scale,
        format=job.format,  # type: ignore[arg-type]
        created=job.created,
        started=job.started,
        ended=job.ended,
        expires=job.deadline,
        progress=round(job.progress, 4),
        eta_s=_eta_s(job),
        paused=job.paused,
        pool=job.pool,
        clips=[clip_view(clip) for clip in job.clips],
        warnings=job.warnings,
        truncated=job.truncated,
        error=job.error,
        result_url=f"/v1/motions/{job.id}/result" if has_result and not gone else None,
    )


def _eta_s(job: Job) -> float | None:
    if job.state != "running" or job.started is None or not 0 < job.progress < 1:
        return None
    return round((time.time() - job.started) * (1 - job.progress) / job.progress, 1)
