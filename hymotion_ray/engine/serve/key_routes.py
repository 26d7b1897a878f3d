"""Routes about the caller itself: what its key has used and may use, and its webhook secret."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.metrics import ANONYMOUS
from hymotion_ray.engine.serve.routes import CallerArg, OfficeArg, errors

own = APIRouter(prefix="/v1", tags=["keys"])


class LimitsView(BaseModel):
    """What a key may use; null: no limit."""

    requests_per_minute: float | None
    queued_clip_seconds: float | None
    gpu_seconds_per_day: float | None


class UsageView(BaseModel):
    """What a key has used."""

    key: str
    gpu_seconds_today: float
    """Since midnight UTC."""
    queued_clip_seconds: float
    """Seconds of motion that wait or run."""
    limits: LimitsView


class SecretView(BaseModel):
    """What the caller's webhooks are signed with."""

    secret: str


@own.get("/usage", response_model=UsageView, responses=errors(401, 403))
async def usage(office: OfficeArg, caller: CallerArg) -> UsageView:
    """What this key has used today, and its limits."""
    limits = caller.limits
    return UsageView(
        key=caller.name,
        gpu_seconds_today=round(office.ledger.spent(caller.name), 4),
        queued_clip_seconds=round(office.desk.waiting_seconds(caller.name), 4),
        limits=LimitsView(
            requests_per_minute=limits.requests_per_minute,
            queued_clip_seconds=limits.queued_clip_seconds,
            gpu_seconds_per_day=limits.gpu_seconds_per_day,
        ),
    )


@own.get("/webhook-secret", response_model=SecretView, responses=errors(401, 403, 404))
async def webhook_secret(office: OfficeArg, caller: CallerArg, response: Response) -> SecretView:
    """The secret that this key's webhooks are signed with; only where callers have keys."""
    signer = office.signer
    if signer is None or caller.name == ANONYMOUS:
        raise Refusal(
            404, "no_webhook_secret", "this server signs no webhooks for callers without a key"
        )
    response.headers["Cache-Control"] = "no-store"
    return SecretView(secret=signer.for_caller(caller.name).secret)
