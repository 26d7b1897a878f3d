"""Routes of batches and their files, in the form of the OpenAI batch interface.

A batch begins with the id of an uploaded file, or with the JSONL itself as the body. Knows HTTP and
the office; how a batch is run is in `batches.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from hymotion_ray.engine.serve.asked import make_job
from hymotion_ray.engine.serve.batch_files import BATCH_ID, FILE_ID, BatchStore
from hymotion_ray.engine.serve.batches import BatchRunner
from hymotion_ray.engine.serve.jobs import Job
from hymotion_ray.engine.serve.keeper import DEAD_S
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.office import Office
from hymotion_ray.engine.serve.routes import CallerArg, OfficeArg, errors
from hymotion_ray.engine.serve.schema import MotionRequest

JSONL = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines")
_TEXT = {"type": "string", "description": "a request a line"}
FileId = Annotated[str, Path(pattern=FILE_ID)]
BatchId = Annotated[str, Path(pattern=BATCH_ID)]
batches = APIRouter(prefix="/v1", tags=["batches"])


class BatchRequest(BaseModel):
    """A batch over an uploaded file."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: StrictStr = Field(pattern=FILE_ID)
    endpoint: Literal["/v1/motions"] = "/v1/motions"
    completion_window: Literal["24h"] = "24h"
    metadata: dict[StrictStr, StrictStr] | None = Field(default=None, max_length=16)


class FileView(BaseModel):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(BaseModel):
    """All files of a key, the newest first."""

    object: Literal["list"] = "list"
    data: list[FileView]
    has_more: bool = False


class Deleted(BaseModel):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class CountsView(BaseModel):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchView(BaseModel):
    """A batch. Times are Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
        "cancelled",
    ]  # fmt: skip
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: CountsView
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    """A page of batches, the newest first."""

    object: Literal["list"] = "list"
    data: list[BatchView]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OfficeJobs:
    """What a batch needs of an office."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def accept_line(self, key: str, job_id: str, body: MotionRequest, batch: str) -> None:
        """See `batches.Jobs`."""
        office = self._office
        caller = office.caller_named(key)
        job = office.make_job(body, caller, job_id, make_job, pay=False)
        job.batch = batch
        office.admit(job, caller, waits=False)
        await office.desk.accept(job)

    async def find(self, key: str, job_id: str) -> Job | None:
        """See `batches.Jobs`."""
        ticket = self._office.desk.find_here(key, job_id)
        if ticket is not None and not ticket.is_closed:
            return ticket.job if not ticket.job.is_ended else None  # it is about to be kept
        return await self._office.desk.find(key, job_id)

    async def wait(self, key: str, job_id: str, within_s: float) -> None:
        """See `batches.Jobs`."""
        until = time.monotonic() + within_s
        while (rest := until - time.monotonic()) > 0:
            ticket = self._office.desk.find_here(key, job_id)
            if ticket is None:
                await asyncio.sleep(rest)
            elif ticket.is_closed:
                return
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ticket.changed.wait(), timeout=rest)

    async def change(self, key: str, job_id: str, verb: str) -> None:
        """See `batches.Jobs`."""
        await self._office.change(key, job_id, verb)

    async def living(self) -> set[str]:
        """See `batches.Jobs`."""
        return await asyncio.to_thread(self._office.desk.store.living, DEAD_S)


def make_runner(office: Office) -> BatchRunner:
    """The batches of an office."""
    return BatchRunner(
        BatchStore(office.store),
        OfficeJobs(office),
        office.desk.owner,
        window_s=office.config.jobs.deadline_s,
        ttl_s=office.config.jobs.result_ttl_s,
    )


def _runner(office: Office) -> BatchRunner:
    assert office.batches is not None, "the office is open"
    return office.batches


@batches.post(
    "/files",
    response_model=FileView,
    responses=errors(400, 401, 403, 413, 415, 422, 429),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "additionalProperties": False,
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "purpose": {"type": "string", "enum": ["batch"]},
                        },
                    }
                },
                **{name: {"schema": _TEXT} for name in JSONL},
            },
        }
    },
)
async def upload(request: Request, office: OfficeArg, caller: CallerArg) -> Any:
    """Keep the JSONL of a batch: as a form with `file` and `purpose`, or as the body itself."""
    kind = _media_type(request)
    if kind in JSONL:
        content, name = await request.body(), "input.jsonl"
    elif kind == "multipart/form-data":
        content, name = await _form_file(request)
    else:
        raise Refusal(415, "media_type", f"{kind or 'no type'}: allowed: a form, or {JSONL[0]}")
    _check_size(content, office)
    store = _runner(office).store
    return await asyncio.to_thread(store.add_file, caller.name, name, content, "batch")


@batches.get("/files", response_model=FileList, responses=errors(401, 403))
async def list_files(office: OfficeArg, caller: CallerArg) -> Any:
    """Files of this key."""
    found = await asyncio.to_thread(_runner(office).store.files, caller.name)
    return {"data": found}


@batches.get("/files/{file_id}", response_model=FileView, responses=errors(401, 403, 404, 422))
async def look_file(file_id: FileId, office: OfficeArg, caller: CallerArg) -> Any:
    """A file's record."""
    found = await asyncio.to_thread(_runner(office).store.file, caller.name, file_id)
    return found or _no_file(file_id)


@batches.get(
    "/files/{file_id}/content",
    response_class=Response,
    responses={200: {"content": {JSONL[0]: {"schema": _TEXT}}}, **errors(401, 403, 404, 422)},
)
async def file_content(file_id: FileId, office: OfficeArg, caller: CallerArg) -> Response:
    """What a file holds."""
    content = await asyncio.to_thread(_runner(office).store.content, caller.name, file_id)
    if content is None:
        _no_file(file_id)
    return Response(content, media_type=JSONL[0])


@batches.delete("/files/{file_id}", response_model=Deleted, responses=errors(401, 403, 404, 422))
async def remove_file(file_id: FileId, office: OfficeArg, caller: CallerArg) -> Deleted:
    """Forget a file."""
    store = _runner(office).store
    if await asyncio.to_thread(store.file, caller.name, file_id) is None:
        _no_file(file_id)
    await asyncio.to_thread(store.remove_file, caller.name, file_id)
    return Deleted(id=file_id)


@batches.post(
    "/batches",
    response_model=BatchView,
    responses=errors(400, 401, 403, 404, 413, 415, 422, 429, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": BatchRequest.model_json_schema()},
                **{name: {"schema": _TEXT} for name in JSONL},
            },
        }
    },
)
async def begin(request: Request, office: OfficeArg, caller: CallerArg) -> Any:
    """Begin a batch: `{"input_file_id": ...}`, or the JSONL itself."""
    office.admit_batch(caller)
    runner, kind = _runner(office), _media_type(request)
    if kind in JSONL:
        content = await request.body()
        _check_size(content, office)
        _check_lines(content, office)
        kept = await asyncio.to_thread(
            runner.store.add_file, caller.name, "input.jsonl", content, "batch"
        )
        return (await runner.create(caller.name, kept.id, None)).document()
    if kind != "application/json":
        raise Refusal(415, "media_type", f"{kind or 'no type'}: allowed: JSON, or {JSONL[0]}")
    asked = _parse(await request.body())
    content_kept = await asyncio.to_thread(
        runner.store.content, caller.name, asked.input_file_id
    )  # fmt: skip
    if content_kept is None:
        _no_file(asked.input_file_id)
    _check_lines(content_kept or b"", office)
    batch = await runner.create(caller.name, asked.input_file_id, asked.metadata)
    return batch.document()


@batches.get("/batches", response_model=BatchList, responses=errors(401, 403, 422))
async def list_batches(
    office: OfficeArg,
    caller: CallerArg,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=BATCH_ID)] = None,
) -> Any:
    """Batches of this key."""
    found = await asyncio.to_thread(_runner(office).store.batches, caller.name)
    if after is not None:
        found = [batch for batch in found if batch.id < after]
    page = found[:limit]
    return {
        "data": [batch.document() for batch in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(found) > len(page),
    }


@batches.get("/batches/{batch_id}", response_model=BatchView, responses=errors(401, 403, 404, 422))
async def look_batch(batch_id: BatchId, office: OfficeArg, caller: CallerArg) -> Any:
    """How a batch stands."""
    found = await asyncio.to_thread(_runner(office).store.batch, caller.name, batch_id)
    if found is None:
        raise Refusal(
            404, "no_such_batch", f"there is no batch {batch_id!r} of this key (any more)"
        )
    return found.document()


@batches.post(
    "/batches/{batch_id}/cancel", response_model=BatchView, responses=errors(401, 403, 404, 422)
)
async def cancel_batch(batch_id: BatchId, office: OfficeArg, caller: CallerArg) -> Any:
    """End a batch; what is finished stays in its output. One that has ended stays as it is."""
    runner = _runner(office)
    found = await asyncio.to_thread(runner.store.batch, caller.name, batch_id)
    if found is None:
        raise Refusal(
            404, "no_such_batch", f"there is no batch {batch_id!r} of this key (any more)"
        )
    return (await runner.cancel(found)).document()


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _form_file(request: Request) -> tuple[bytes, str]:
    try:
        form = await request.form(max_files=1, max_fields=4)
    except HTTPException as error:
        raise Refusal(400, "bad_form", f"the form cannot be read: {error.detail}") from error
    try:
        file, purpose = form.get("file"), form.get("purpose", "batch")
        if unknown := sorted(set(form) - {"file", "purpose"}):
            raise Refusal(
                422, "unknown_field", f"unknown: {unknown[0][:80]}; allowed: file, purpose"
            )
        if not isinstance(file, UploadFile):
            raise Refusal(422, "no_file", "the form has no `file`")
        if purpose != "batch":
            raise Refusal(422, "bad_purpose", f"purpose is {purpose!r}; allowed: batch")
        return await file.read(), file.filename or "input.jsonl"
    finally:
        await form.close()


def _check_size(content: bytes, office: Office) -> None:
    limit = office.config.limits.max_batch_bytes
    if len(content) > limit:
        raise Refusal(413, "file_too_large", f"{len(content)} bytes; allowed: {limit}")


def _check_lines(content: bytes, office: Office) -> None:
    limit = office.config.limits.max_batch_lines
    if content.count(b"\n") > limit:
        raise Refusal(413, "too_many_lines", f"allowed: {limit} lines")


def _parse(body: bytes) -> BatchRequest:
    try:
        return BatchRequest.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refusal(422, "invalid", f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise Refusal(422, "invalid", f"the body is no JSON: {error}"[:300]) from error


def _no_file(file_id: str) -> Any:
    raise Refusal(404, "no_such_file", f"there is no file {file_id!r} of this key (any more)")
