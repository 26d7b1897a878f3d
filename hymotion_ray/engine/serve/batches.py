"""Batches: many requests of one file, done in the background, each line's fault its own.

A batch goes validating -> in_progress -> finalizing -> completed; or failed (no line can be used),
expired, cancelling -> cancelled. Its lines become jobs with ids of their own, so that a process
that takes a batch over finds what is done and asks for nothing twice. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from hymotion_ray.engine.serve.batch_files import (
    BATCH_ENDED,
    ENDPOINT,
    Batch,
    BatchStore,
    Counts,
)
from hymotion_ray.engine.serve.jobs import Job
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.schema import MotionRequest, job_view
from hymotion_ray.errors import HyMotionError

logger = logging.getLogger("hymotion_ray.serve")
MAX_LINE_BYTES = 1 << 20
MAX_SHOWN_ERRORS = 100
AT_ONCE = 256
"""Lines that are jobs at once, of all batches of a process: enough to fill the samplers of several
GPUs, few beside `queue.max_jobs`."""
_PART_ROWS, _PART_S = 200, 5.0
_LOOK_S = 1.0
_SWEEP_S = 600.0


class Jobs(Protocol):
    """What a batch needs of the office: jobs by id, for a key by its name."""

    async def accept_line(self, key: str, job_id: str, body: MotionRequest, batch: str) -> None:
        """Take a line on as a durable job, once; `Refusal` when not now (429, 503) or never."""
        ...

    async def find(self, key: str, job_id: str) -> Job | None:
        """The job as it stands."""
        ...

    async def wait(self, key: str, job_id: str, within_s: float) -> None:
        """Return when the job has ended, or after so many seconds."""
        ...

    async def change(self, key: str, job_id: str, verb: str) -> None:
        """Cancel it."""
        ...

    async def living(self) -> set[str]:
        """Owners of which there are signs of life."""
        ...


@dataclass(frozen=True)
class Line:
    """One line of the input: a request, or why there is none."""

    number: int
    custom_id: str | None
    body: MotionRequest | None
    error: tuple[str, str] | None = None


def read_lines(content: bytes) -> Iterator[Line]:
    """The lines of a file: the OpenAI form (`custom_id`, `body`) or a bare request.

    Blank lines are passed over and counted. A line that cannot be used comes with its code and
    message and stops nothing.
    """
    seen: set[str] = set()
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        line = _read_line(number, raw)
        name = line.custom_id
        if name is not None and line.error is None:
            if name in seen:
                text = f"custom_id {name!r} stands on an earlier line too"
                line = Line(number, name, None, ("duplicate_custom_id", text))
            seen.add(name)
        yield line


def _read_line(number: int, raw: bytes) -> Line:
    if len(raw) > MAX_LINE_BYTES:
        return Line(number, None, None, ("line_too_long", f"allowed: {MAX_LINE_BYTES} bytes"))
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return Line(number, None, None, ("invalid_json_line", f"no JSON: {error}"[:300]))
    if not isinstance(row, dict):
        return Line(number, None, None, ("invalid_json_line", "the line is no JSON object"))
    custom_id = row.pop("custom_id", None)
    if custom_id is not None and (not isinstance(custom_id, str) or len(custom_id) > 512):
        return Line(number, None, None, ("bad_custom_id", "custom_id must be a text of up to 512"))
    if "body" in row or "url" in row or "method" in row:
        if row.get("url", ENDPOINT) != ENDPOINT or row.get("method", "POST") != "POST":
            return Line(number, custom_id, None, ("bad_url", f"allowed: POST {ENDPOINT}"))
        row = row.get("body")
    try:
        body = MotionRequest.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return Line(number, custom_id, None, ("invalid_request", f"{where}: {first['msg']}"))
    if body.webhook is not None:
        return Line(number, custom_id, None, ("no_webhooks", "a line of a batch has no webhook"))
    return Line(number, custom_id if custom_id is not None else body.id, body)


@dataclass
class _Running:
    """What is kept of a batch while it runs."""

    batch: Batch
    rows: list[dict[str, Any]] = field(default_factory=list)
    written: float = field(default_factory=time.monotonic)


class BatchRunner:
    """Runs the batches of one process. Its methods belong to one event loop."""

    def __init__(
        self, store: BatchStore, jobs: Jobs, owner: str, *, window_s: float, ttl_s: float
    ) -> None:
        """window_s: after which a batch expires that has not ended; ttl_s: that files are kept."""
        self.store, self._jobs, self._owner = store, jobs, owner
        self._window_s, self._ttl_s = window_s, ttl_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def create(self, key: str, file_id: str, metadata: dict[str, str] | None) -> Batch:
        """Begin a batch over a file; it is durable when this returns."""
        now = int(time.time())
        batch = Batch(
            id=f"batch_{int(time.time() * 1000):012x}{secrets.token_hex(6)}",
            input_file_id=file_id,
            created_at=now,
            expires_at=now + int(self._window_s),
            completion_window=f"{self._window_s / 3600:g}h",
            metadata=metadata,
            key=key,
            owner=self._owner,
        )
        await asyncio.to_thread(self.store.save, batch)
        self._start(batch)
        return batch

    async def cancel(self, batch: Batch) -> Batch:
        """Ask for the end of a batch; what is finished stays in its output."""
        if batch.status in BATCH_ENDED:
            return batch
        await asyncio.to_thread(self.store.ask_cancel, batch)
        batch.status = "cancelling"
        batch.cancelling_at = batch.cancelling_at or int(time.time())
        return batch

    async def run(self) -> None:
        """Take up batches whose process is gone, and sweep away old ones, for ever."""
        swept = time.monotonic()
        try:
            while True:
                try:
                    await self._adopt()
                    if time.monotonic() - swept > _SWEEP_S:
                        swept = time.monotonic()
                        await asyncio.to_thread(self.store.sweep, self._ttl_s, time.time())
                except HyMotionError as error:
                    logger.error("batches cannot be read: %s", error)
                await asyncio.sleep(5.0)
        finally:
            for task in self._tasks.values():
                task.cancel()

    @property
    def num_running(self) -> int:
        """Batches of this process that have not ended."""
        return len(self._tasks)

    async def _adopt(self) -> None:
        living: set[str] | None = None
        for batch in await asyncio.to_thread(self.store.batches):
            if batch.status in BATCH_ENDED or batch.id in self._tasks:
                continue
            living = await self._jobs.living() if living is None else living
            if batch.owner in living and batch.owner != self._owner:
                continue
            batch.owner = self._owner
            await asyncio.to_thread(self.store.save, batch)
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        task = asyncio.create_task(self._guarded(batch))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _guarded(self, batch: Batch) -> None:
        try:
            await self._run(batch)
        except HyMotionError as error:
            logger.error("batch %s stands still: %s", batch.id, error)
        except Exception:
            logger.exception("batch %s stands still", batch.id)

    async def _run(self, batch: Batch) -> None:
        content = await asyncio.to_thread(self.store.content, batch.key, batch.input_file_id)
        lines = list(read_lines(content)) if content is not None else []
        if not any(line.body is not None for line in lines):
            await self._fail(batch, content, lines)
            return
        running = _Running(batch)
        kept = await asyncio.to_thread(self.store.parts, batch)
        done = {row["number"] for row in kept}
        ok = sum(row["ok"] for row in kept)
        batch.request_counts = Counts(len(lines), ok, len(kept) - ok)
        if batch.status == "validating":
            batch.status, batch.in_progress_at = "in_progress", int(time.time())
            await asyncio.to_thread(self.store.save, batch)
        stopper = asyncio.Event()
        watching = asyncio.create_task(self._watch(batch, stopper))
        try:
            await self._work(running, [line for line in lines if line.number not in done], stopper)
        finally:
            watching.cancel()
        await self._finish(running)

    async def _watch(self, batch: Batch, stopper: asyncio.Event) -> None:
        """Set `stopper` when the batch is cancelled or its time is over."""
        while not stopper.is_set():
            with contextlib.suppress(HyMotionError):
                if await asyncio.to_thread(self.store.is_cancelled, batch):
                    batch.status = "cancelling"
                    batch.cancelling_at = batch.cancelling_at or int(time.time())
                    stopper.set()
            if time.time() > batch.expires_at:
                stopper.set()
            await asyncio.sleep(_LOOK_S)

    async def _work(self, running: _Running, lines: list[Line], stopper: asyncio.Event) -> None:
        todo = iter(lines)

        async def worker() -> None:
            for line in todo:
                async with self._places:
                    row = await self._line(running.batch, line, stopper)
                await self._keep(running, line, row)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(AT_ONCE, len(lines))):
                workers.create_task(worker())

    async def _line(self, batch: Batch, line: Line, stopper: asyncio.Event) -> dict[str, Any]:
        """The output row of a line, when it has ended."""
        if line.body is None:
            assert line.error is not None
            return _row(batch, line, error=line.error)
        job_id = f"{batch.id}-{line.number}"
        while True:
            job = await self._jobs.find(batch.key, job_id)
            if stopper.is_set() and (job is None or not job.is_ended):
                return await self._stop_line(batch, line, job)
            if job is not None and job.is_ended:
                return _row(batch, line, job=job)
            try:
                if job is None:
                    await self._jobs.accept_line(batch.key, job_id, line.body, batch.id)
            except Refusal as refusal:
                if refusal.status not in (429, 503):
                    return _row(batch, line, error=(refusal.code, refusal.message))
                pause = min(refusal.retry_after_s or 1.0, 60.0)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopper.wait(), timeout=pause)
                continue
            await self._jobs.wait(batch.key, job_id, _LOOK_S)

    async def _stop_line(self, batch: Batch, line: Line, job: Job | None) -> dict[str, Any]:
        if job is not None:
            with contextlib.suppress(Refusal, HyMotionError):
                await self._jobs.change(batch.key, job.id, "cancel")
            job = await self._jobs.find(batch.key, job.id)
            if job is not None and job.state in ("succeeded", "failed"):
                return _row(batch, line, job=job)
        if batch.status == "cancelling":
            return _row(batch, line, error=("batch_cancelled", "the batch was cancelled"))
        return _row(batch, line, error=("batch_expired", "the batch's time was over"))

    async def _keep(self, running: _Running, line: Line, row: dict[str, Any]) -> None:
        batch, is_ok = running.batch, row["error"] is None
        counts = batch.request_counts
        counts.completed, counts.failed = counts.completed + is_ok, counts.failed + (not is_ok)
        running.rows.append({"number": line.number, "ok": is_ok, "row": row})
        late = time.monotonic() - running.written > _PART_S
        if len(running.rows) >= _PART_ROWS or late:
            await self._flush(running)

    async def _flush(self, running: _Running) -> None:
        rows, running.rows, running.written = running.rows, [], time.monotonic()
        if rows:
            await asyncio.to_thread(self.store.add_part, running.batch, rows)
        await asyncio.to_thread(self.store.save, running.batch)

    async def _finish(self, running: _Running) -> None:
        batch, store, now = running.batch, self.store, int(time.time())
        cancelled, unfinished = batch.status == "cancelling", time.time() > batch.expires_at
        batch.finalizing_at = now
        if not cancelled:
            batch.status = "finalizing"
        await self._flush(running)
        rows = await asyncio.to_thread(store.parts, batch)
        for is_ok, name in ((True, "output"), (False, "error")):
            part = [row["row"] for row in rows if row["ok"] is is_ok]
            if not part:
                continue
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part).encode()
            filename = f"{batch.id}_{name}.jsonl"
            kept = await asyncio.to_thread(
                store.add_file, batch.key, filename, text, "batch_output"
            )  # fmt: skip
            setattr(batch, f"{name}_file_id", kept.id)
        expired = unfinished and any(
            row["row"]["error"] and row["row"]["error"]["code"] == "batch_expired" for row in rows
        )
        end = int(time.time())
        if cancelled:
            batch.status, batch.cancelled_at = "cancelled", end
        elif expired:
            batch.status, batch.expired_at = "expired", end
        else:
            batch.status, batch.completed_at = "completed", end
        await asyncio.to_thread(store.save, batch)
        await asyncio.to_thread(store.clear, batch)
        logger.info("batch ended", extra={"batch": batch.id, "state": batch.status})

    async def _fail(self, batch: Batch, content: bytes | None, lines: list[Line]) -> None:
        faults: list[dict[str, Any]]
        if content is None:
            faults = [{"code": "no_such_file", "message": "the input file is gone", "line": None}]
        elif not lines:
            faults = [{"code": "empty_file", "message": "the file has no lines", "line": None}]
        else:
            faults = [
                {"code": line.error[0], "message": line.error[1], "line": line.number}
                for line in lines[:MAX_SHOWN_ERRORS]
                if line.error is not None
            ]
        batch.errors = {"object": "list", "data": [{**fault, "param": None} for fault in faults]}
        batch.request_counts = Counts(len(lines), 0, len(lines))
        batch.status, batch.failed_at = "failed", int(time.time())
        await asyncio.to_thread(self.store.save, batch)


def _row(
    batch: Batch, line: Line, *, job: Job | None = None, error: tuple[str, str] | None = None
) -> dict[str, Any]:
    """A line of the output or error file."""
    row: dict[str, Any] = {
        "id": f"{batch.id}-{line.number}",
        "custom_id": line.custom_id,
        "line": line.number,
        "response": None,
        "error": None,
    }
    if job is not None:
        body = job_view(job).model_dump(mode="json")
        row["response"] = {"status_code": 200, "request_id": row["id"], "body": body}
        if job.state != "succeeded":
            told = job.error or {"code": job.state, "message": f"the job has {job.state}"}
            error = (told["code"], told["message"])
    if error is not None:
        row["error"] = {"code": error[0], "message": error[1]}
    return row
