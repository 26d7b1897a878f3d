"""The HTTP side: one FastAPI app over a `Desk`. Knows nothing of Ray.

Errors have one form, `{"error": {"code", "message"}, "request_id"}`. A request that nobody waits
for any more (the client went away) is cancelled, unless it has an id that it may be asked for by.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from hymotion_ray.engine.serve.asked import make_job
from hymotion_ray.engine.serve.desk import Desk, Ticket
from hymotion_ray.engine.serve.jobs import ID_PATTERN, Job
from hymotion_ray.engine.serve.keys import Caller, Refusal
from hymotion_ray.engine.serve.office import Office
from hymotion_ray.engine.serve.results import Clip, encode_result
from hymotion_ray.engine.serve.schema import (
    ErrorAnswer,
    Format,
    JobList,
    JobView,
    ModelList,
    ModelView,
    MotionRequest,
    ReadyView,
    job_view,
)

_POLL_S = 0.5
JobId = Annotated[str, Path(pattern=ID_PATTERN, description="The job's id.")]
Prefer = Annotated[
    str | None,
    Header(description="`respond-async`: 202 at once; `wait=N`: at most N seconds. RFC 7240."),
]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for OpenAPI."""
    about = {
        400: "not HTTP or not JSON",
        401: "no key, or an unknown one",
        403: "a key that may not",
        404: "no such job, clip or model",
        409: "the id stands for another request, or the job is in another state",
        410: "the result has expired",
        413: "too long, too many, or too large",
        415: "another media type than those above",
        422: "unknown fields or values that are not allowed",
        429: "the queue or a limit is full; see Retry-After",
        503: "not ready; see Retry-After",
    }
    return {status: {"model": ErrorAnswer, "description": about[status]} for status in statuses}


_ALWAYS = (400, 401, 403, 413, 422, 429, 503)


# Coroutines, because the framework gives plain functions to a thread, which costs a millisecond.
async def office_of(request: Request) -> Office:
    """What this process answers requests with."""
    office: Office = request.app.state.office
    return office


async def caller_of(request: Request) -> Caller:
    """Who asks; `Refusal` 401 or 403."""
    return (await office_of(request)).identify(request)


_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "description": "the job's state"},
        "data": {"type": "string", "description": "the job, as JSON"},
    },
}
OfficeArg = Annotated[Office, Depends(office_of)]
CallerArg = Annotated[Caller, Depends(caller_of)]
motions = APIRouter(prefix="/v1", tags=["motions"])


@motions.post(
    "/motions",
    response_model=JobView,
    responses={202: {"model": JobView, "description": "accepted"}, **errors(*_ALWAYS, 409)},
)
async def ask(
    body: MotionRequest,
    request: Request,
    response: Response,
    office: OfficeArg,
    caller: CallerArg,
    prefer: Prefer = None,
) -> Any:
    """Ask for motion: 200 when it is done within the wait, else 202 and a job that goes on."""
    return await _ask(body, body.id, request, response, office, caller, prefer)


@motions.put(
    "/motions/{job_id}",
    response_model=JobView,
    responses={202: {"model": JobView, "description": "accepted"}, **errors(*_ALWAYS, 409)},
)
async def ask_once(
    job_id: JobId,
    body: MotionRequest,
    request: Request,
    response: Response,
    office: OfficeArg,
    caller: CallerArg,
    prefer: Prefer = None,
) -> Any:
    """The same under an id of your own: sent again, it is still one job."""
    if body.id not in (None, job_id):
        raise Refusal(422, "bad_id", f"the body says id {body.id!r}, the path {job_id!r}")
    return await _ask(body, job_id, request, response, office, caller, prefer)


async def _ask(
    body: MotionRequest,
    job_id: str | None,
    request: Request,
    response: Response,
    office: Office,
    caller: Caller,
    prefer: str | None,
) -> JobView:
    desk = office.desk
    await office.settle()
    job = office.make_job(body, caller, job_id, make_job)
    is_async, wait_s = _preference(prefer, office.config.limits.wait_s)
    named = job_id is not None
    known = await desk.find(job.key, job.id) if named else None
    if known is not None:
        if known.fingerprint != job.fingerprint:
            raise Refusal(
                409, "id_taken", f"{job.id} stands for another request; use another id for this one"
            )
        ticket = desk.find_here(job.key, job.id)
        if ticket is not None and not is_async:
            await _wait(ticket, wait_s)
        return _answer(ticket.job if ticket else known, response)
    if named and (twin := desk.find_here(job.key, job.id)) is not None:
        # The same request came while the store was asked: it is the same job.
        return await _ask(body, twin.job.id, request, response, office, caller, prefer)
    office.admit(job, caller, waits=not is_async)
    job.request_id = request.state.request_id
    if is_async:
        return _answer((await desk.accept(job)).job, response)
    ticket = desk.start(job, durable=named)
    try:
        if named:
            await desk.make_durable(ticket)
        await _wait(ticket, wait_s)
    except asyncio.CancelledError:
        if not named:
            asyncio.create_task(desk.cancel(ticket))  # noqa: RUF006 - the desk holds the ticket
        raise
    if not job.is_ended and not ticket.durable:
        await desk.make_durable(ticket)
    return _answer(job, response)


async def _wait(ticket: Ticket, wait_s: float) -> None:
    """Wait until the job has ended, at most so long."""
    until = time.monotonic() + wait_s
    while not ticket.is_closed:
        rest = until - time.monotonic()
        if rest <= 0:
            return
        try:
            await asyncio.wait_for(ticket.changed.wait(), timeout=rest)
        except TimeoutError:
            return


def _answer(job: Job, response: Response) -> JobView:
    response.status_code = 200 if job.is_ended else 202
    response.headers["Location"] = f"/v1/motions/{job.id}"
    if not job.is_ended:
        response.headers["Retry-After"] = "1"
    return job_view(job)


def _preference(prefer: str | None, longest_s: float) -> tuple[bool, float]:
    """(whether an answer is wanted at once, seconds to wait) of a `Prefer` header."""
    is_async, wait_s = False, longest_s
    for part in (prefer or "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "respond-async":
            is_async = True
        elif name.lower() == "wait" and value.strip().isdecimal() and len(value) < 10:
            wait_s = min(longest_s, float(value))
    return is_async, wait_s


@motions.get("/motions", response_model=JobList, responses=errors(401, 403, 422))
async def list_motions(
    office: OfficeArg,
    caller: CallerArg,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> JobList:
    """Jobs of this key that are kept, the newest first."""
    jobs, more = await asyncio.to_thread(office.desk.store.list_jobs, caller.name, after, limit)
    here = [office.desk.find_here(caller.name, job.id) for job in jobs]
    shown = [t.job if t is not None else job for t, job in zip(here, jobs, strict=True)]
    return JobList(data=[job_view(job) for job in shown], next=more)


@motions.get("/motions/{job_id}", response_model=JobView, responses=errors(401, 403, 404, 422))
async def look(job_id: JobId, office: OfficeArg, caller: CallerArg) -> JobView:
    """How a job stands."""
    return job_view(await _found(office.desk, caller, job_id))


async def _found(desk: Desk, caller: Caller, job_id: str) -> Job:
    job = await desk.find(caller.name, job_id)
    if job is None:
        raise Refusal(404, "no_such_job", f"there is no job {job_id!r} of this key (any more)")
    return job


@motions.post(
    "/motions/{job_id}/cancel", response_model=JobView, responses=errors(401, 403, 404, 422, 503)
)
async def cancel(job_id: JobId, office: OfficeArg, caller: CallerArg) -> JobView:
    """End a job now. Its slot is free within one step; a job that has ended stays as it is."""
    return await _change(job_id, office, caller, "cancel")


@motions.post(
    "/motions/{job_id}/pause",
    response_model=JobView,
    responses=errors(401, 403, 404, 409, 422, 503),
)
async def pause(job_id: JobId, office: OfficeArg, caller: CallerArg) -> JobView:
    """Hold a job back until it is resumed; finished clips stay."""
    return await _change(job_id, office, caller, "pause")


@motions.post(
    "/motions/{job_id}/resume",
    response_model=JobView,
    responses=errors(401, 403, 404, 409, 422, 503),
)
async def resume(job_id: JobId, office: OfficeArg, caller: CallerArg) -> JobView:
    """Let a paused job go on."""
    return await _change(job_id, office, caller, "resume")


async def _change(job_id: str, office: Office, caller: Caller, verb: str) -> JobView:
    await _found(office.desk, caller, job_id)
    await office.change(caller.name, job_id, verb)
    job = await _found(office.desk, caller, job_id)
    if verb != "cancel" and job.is_ended:
        raise Refusal(409, "has_ended", f"the job has {job.state}; it can no longer {verb}")
    return job_view(job)


@motions.get(
    "/motions/{job_id}/events",
    responses={
        200: {"content": {"text/event-stream": {"schema": _EVENT}}},
        **errors(401, 403, 404, 422),
    },
    response_class=StreamingResponse,
)
async def events(job_id: JobId, office: OfficeArg, caller: CallerArg) -> StreamingResponse:
    """The job's state as server-sent events, whenever it changes, until it has ended."""
    await _found(office.desk, caller, job_id)
    return StreamingResponse(
        _events(office.desk, caller, job_id),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(desk: Desk, caller: Caller, job_id: str) -> AsyncIterator[str]:
    last = ""
    quiet_since = time.monotonic()
    while True:
        ticket = desk.find_here(caller.name, job_id)
        changed = ticket.changed if ticket is not None else None
        job = await desk.find(caller.name, job_id)
        if job is None:
            return
        document = job_view(job).model_dump(mode="json")
        text = json.dumps({name: v for name, v in document.items() if name != "eta_s"})
        if text != last:
            last, quiet_since = text, time.monotonic()
            yield f"event: {job.state}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n"
        elif time.monotonic() - quiet_since > 15.0:
            quiet_since = time.monotonic()
            yield ": still here\n\n"
        if job.is_ended and (ticket is None or ticket.is_closed):
            return
        if changed is None:
            await asyncio.sleep(_POLL_S)
            continue
        try:
            await asyncio.wait_for(changed.wait(), timeout=5.0)
        except TimeoutError:
            continue


@motions.get(
    "/motions/{job_id}/result",
    responses={
        200: {
            "description": "one clip's file, or an archive of several",
            "content": {
                name: {"schema": {"type": "string", "format": "binary"}}
                for name in ("application/octet-stream", "model/gltf-binary", "application/zip")
            }
            | {"application/json": {"schema": {"type": "object"}}}
            | {n: {"schema": {"type": "string"}} for n in ("text/plain", "text/html")},
        },
        304: {"description": "unchanged since `If-None-Match`"},
        **errors(401, 403, 404, 409, 410, 422),
    },
    response_class=Response,
)
async def result(
    job_id: JobId,
    office: OfficeArg,
    caller: CallerArg,
    format: Annotated[Format | None, Query(description="else the job's own")] = None,
    clip: Annotated[int | None, Query(ge=0, description="number of one clip, from 0")] = None,
    seed: Annotated[int | None, Query(ge=0, description="or its seed")] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The motion. One clip in a file format is that file; several are a ZIP archive."""
    job = await _found(office.desk, caller, job_id)
    if not job.is_ended:
        raise Refusal(409, "not_ended", f"the job is {job.state}; wait for its end", 1.0)
    seeds = [c.seed for c in job.clips if c.state == "succeeded"]
    if clip is not None or seed is not None:
        wanted = job.seeds[clip] if clip is not None and clip < len(job.seeds) else seed
        seeds = [s for s in seeds if s == wanted]
    if not seeds:
        gone = job.state == "expired"
        text = f"the job has {job.state} and has no such clip"
        raise Refusal(410 if gone else 404, "expired" if gone else "no_such_clip", text)
    files = [await office.desk.clip(job, s) for s in seeds]
    if any(npz is None for npz in files):
        raise Refusal(410, "expired", "the result is no longer kept; ask for it again")
    clips = [Clip(s, npz) for s, npz in zip(seeds, files, strict=True) if npz is not None]
    made = await asyncio.to_thread(encode_result, clips, format or job.format, job.id)
    if made.matches(if_none_match):
        return Response(status_code=304, headers={"ETag": made.headers()["ETag"]})
    return Response(made.content, media_type=made.media_type, headers=made.headers())


@motions.get("/models", response_model=ModelList, responses=errors(401, 403))
async def models(office: OfficeArg, caller: CallerArg) -> ModelList:
    """What requests may name in `model`."""
    return ModelList(data=office.model_views(caller))


@motions.get("/models/{name}", response_model=ModelView, responses=errors(401, 403, 404, 422))
async def model(name: str, office: OfficeArg, caller: CallerArg) -> ModelView:
    """One of them."""
    for view in office.model_views(caller):
        if view.id == name:
            return view
    raise Refusal(404, "no_such_model", f"there is no model {name!r}; see /v1/models")


health = APIRouter(tags=["health"])


@health.get("/livez")
async def livez() -> dict[str, bool]:
    """Whether this process answers."""
    return {"alive": True}


@health.get("/readyz", response_model=ReadyView, responses={503: {"model": ReadyView}})
async def readyz(office: OfficeArg) -> JSONResponse:
    """Whether requests are taken: 503 with the reason until a real step has run."""
    reasons = await office.unready()
    view = ReadyView(ready=not reasons, reason="; ".join(reasons), reasons=reasons)
    headers = {"Retry-After": "2"} if reasons else {}
    return JSONResponse(view.model_dump(), status_code=503 if reasons else 200, headers=headers)


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header for a wait: whole seconds, at least 1."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}
