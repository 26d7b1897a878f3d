"""The jobs of one HTTP process: taken on, run, waited for, cancelled, kept.

A job that someone waits for runs at once. One that nobody waits for is durable before it is
accepted, waits in a queue that is fair between keys, and runs where there is room. Knows no HTTP;
`keeper.py` takes over what other processes left behind.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.fair_queue import FairQueue
from hymotion_ray.engine.serve.jobs import ClipRecord, Job, JobStore
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.router import Full
from hymotion_ray.engine.serve.runner import Runner, ServedPools
from hymotion_ray.engine.serve.work import clip_units

logger = logging.getLogger("hymotion_ray.serve")
BACKGROUND_BUDGET_S = 120.0
_KEPT_JOBS = 1000
_KEPT_BYTES = 64 << 20
_AT_ONCE = 256
"""Background jobs under way at once, an HTTP process."""


@dataclass(eq=False)
class Ticket:
    """A job in this process."""

    job: Job
    durable: bool
    """Whether its record is kept up to date."""
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    npz: dict[int, bytes] = field(default_factory=dict)
    """Clips whose files may not be written yet."""
    pausing: bool = False
    is_closed: bool = False
    """Whether the job has ended and is kept as it must be."""

    @property
    def key(self) -> str:
        """Whose it is."""
        return self.job.key

    @property
    def kind(self) -> str:
        """Its model: each has room of its own."""
        return self.job.model

    @property
    def deadline(self) -> float:
        """The first come is the first served."""
        return self.job.created

    @property
    def cost(self) -> float:
        """Units of what is left of it."""
        job = self.job
        left = sum(clip.state in ("queued", "running") for clip in job.clips)
        return left * clip_units(job.num_frames, job.num_steps, job.guidance_scale)

    def touch(self) -> None:
        """Wake who watches."""
        self.changed.set()
        self.changed = asyncio.Event()


class Desk:
    """All jobs of this process. Its methods belong to one event loop."""

    def __init__(
        self,
        config: ServeConfig,
        models: dict[str, ServedPools],
        store: JobStore,
        *,
        on_end: Callable[[Job], Awaitable[None]] | None = None,
    ) -> None:
        """on_end: told of every job that ended, after its clips and before its record are kept."""
        self.config, self.models, self.store = config, models, store
        self.owner = secrets.token_hex(8)
        self.draining = False
        self._on_end = on_end
        self._open: dict[tuple[str, str], Ticket] = {}
        self._done: OrderedDict[tuple[str, str], Ticket] = OrderedDict()
        self._done_bytes = 0
        self._waiting: FairQueue[Ticket] = FairQueue()
        self._background: set[Ticket] = set()
        self._writes: set[asyncio.Task[None]] = set()
        self._may_start = asyncio.Event()
        self.runner = Runner(models, config.queue, self._keep_clip, self._changed)

    # --- taking on ---

    def find_here(self, key: str, job_id: str) -> Ticket | None:
        """A job of this process, ended or not."""
        return self._open.get((key, job_id)) or self._done.get((key, job_id))

    async def find(self, key: str, job_id: str) -> Job | None:
        """A job of any process."""
        ticket = self.find_here(key, job_id)
        if ticket is not None:
            return ticket.job
        return await asyncio.to_thread(self.store.find, key, job_id)

    def admit(self, job: Job, *, waits: bool) -> None:
        """Raise `Refusal` 429 with the time to come back when a job cannot be taken on now."""
        if self.draining:
            raise Refusal(503, "draining", "this process is about to end; try again", 1.0)
        served = self.models[job.model]
        if len(self._open) >= self.config.queue.max_jobs:
            speed = sum(pool.speed for pool in served.router.pools.values())
            units = sum(ticket.cost for ticket in self._open.values())
            each = units / len(self._open) / speed if speed else 5.0
            raise Refusal(
                429, "queue_full", f"{len(self._open)} jobs are open already", max(1.0, each)
            )
        if waits:
            units = len(job.seeds) * clip_units(job.num_frames, job.num_steps, job.guidance_scale)
            try:
                served.router.admit(job.fingerprint, units)
            except Full as full:
                raise Refusal(429, "queue_full", full.message, full.retry_after_s) from full
            served.router.coming[job.id] = units

    def start(self, job: Job, *, durable: bool) -> Ticket:
        """Run a job that someone waits for."""
        ticket = Ticket(job, durable)
        job.owner, job.attempts = self.owner, job.attempts + 1
        self._open[job.key, job.id] = ticket
        ticket.task = asyncio.create_task(self._run(ticket, self.config.limits.wait_s))
        return ticket

    async def accept(self, job: Job) -> Ticket:
        """Take on a job that nobody waits for; it is durable when this returns."""
        ticket = Ticket(job, durable=True)
        job.owner = self.owner
        self._open[job.key, job.id] = ticket
        try:
            await self.make_durable(ticket)
        except BaseException:
            self._open.pop((job.key, job.id), None)
            raise
        self.enqueue(ticket)
        return ticket

    async def make_durable(self, ticket: Ticket) -> None:
        """Keep the record from now on."""
        ticket.durable = True
        await asyncio.to_thread(self.store.beat, self.owner)
        await asyncio.to_thread(self.store.save, ticket.job)
        await asyncio.to_thread(self.store.mark_open, ticket.job)
        if ticket.job.is_ended:  # it ended in between
            await asyncio.to_thread(self.store.save, ticket.job)

    def enqueue(self, ticket: Ticket) -> None:
        """Put a durable job in the line of those that run when there is room."""
        self._open[ticket.job.key, ticket.job.id] = ticket
        if not ticket.job.paused:
            self._waiting.push(ticket)
            self._may_start.set()

    async def run_background(self) -> None:
        """Start waiting jobs while there is room, for ever."""
        while True:
            self._may_start.clear()
            while len(self._waiting) and len(self._background) < _AT_ONCE and not self.draining:
                ticket = self._waiting.pop(self._has_room)
                if ticket is None:
                    break
                self._background.add(ticket)
                ticket.job.attempts += 1
                ticket.task = asyncio.create_task(self._run(ticket, BACKGROUND_BUDGET_S))
                await asyncio.sleep(0)
            poll_s = 0.25 if len(self._waiting) else None  # room comes without a word
            try:
                await asyncio.wait_for(self._may_start.wait(), timeout=poll_s)
            except TimeoutError:
                continue

    def _has_room(self, model: Hashable) -> bool:
        """Whether the samplers of a model take more of what nobody waits for."""
        served = self.models.get(str(model))
        if served is None:  # its encoder has not answered yet
            return False
        wait = served.router.wait_s()
        if any(pool.may_be_cold for pool in served.router.pools.values()):
            under_way = sum(ticket.job.model == model for ticket in self._background)
            return under_way < 4 or (wait or 0.0) < self.config.queue.background_s
        return wait is not None and wait < self.config.queue.background_s

    def held_back(self, model: str) -> float:
        """Units of a model's jobs that wait here until its samplers have room."""
        return sum(ticket.cost for ticket in self._waiting if ticket.job.model == model)

    # --- running ---

    async def _run(self, ticket: Ticket, budget_s: float) -> None:
        job = ticket.job
        rest = job.deadline - time.time()
        try:
            async with asyncio.timeout(max(0.0, rest)):
                await self.runner.run(job, budget_s=budget_s)
            job.state = (
                "failed" if not any(c.state == "succeeded" for c in job.clips) else ("succeeded")
            )
            if job.state == "failed":
                job.error = next((c.error for c in job.clips if c.error), None)
        except TimeoutError:
            job.state = "expired"
            job.error = {"code": "expired", "message": "the job did not end before its deadline"}
        except asyncio.CancelledError:
            if ticket.pausing or self.draining:
                self._background.discard(ticket)
                return  # its record stays open: it is taken up again
            job.state = "canceled"
        except Exception as error:  # the job's end, not the process's
            logger.exception("job %s failed", job.id)
            job.state = "failed"
            job.error = {"code": "internal", "message": f"{type(error).__name__}: {error}"[:300]}
        self._background.discard(ticket)
        self._may_start.set()
        await self._end(ticket)

    async def _end(self, ticket: Ticket) -> None:
        job = ticket.job
        job.ended = time.time()
        self.models[job.model].router.coming.pop(job.id, None)
        for clip in job.clips:
            if clip.state in ("queued", "running"):
                clip.state = job.state
        job.progress = 1.0 if job.state == "succeeded" else job.progress
        if self._on_end is not None:
            await self._on_end(job)
        writing = asyncio.create_task(self._write(ticket))
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        if ticket.durable or self.config.http.replicas > 1:
            await asyncio.wait([writing])
        self._open.pop((job.key, job.id), None)
        self._remember(ticket)
        ticket.is_closed = True
        ticket.touch()

    async def _write(self, ticket: Ticket) -> None:
        job = ticket.job
        try:
            if not ticket.durable:
                for seed, npz in ticket.npz.items():
                    await asyncio.to_thread(self.store.write_clip, job, seed, npz)
            await asyncio.to_thread(self.store.save, job)
        except Exception:
            logger.exception("job %s cannot be kept; its clips stay in memory for now", job.id)

    def _remember(self, ticket: Ticket) -> None:
        self._done[ticket.job.key, ticket.job.id] = ticket
        self._done_bytes += sum(len(npz) for npz in ticket.npz.values())
        while len(self._done) > _KEPT_JOBS or self._done_bytes > _KEPT_BYTES:
            _, old = self._done.popitem(last=False)
            self._done_bytes -= sum(len(npz) for npz in old.npz.values())

    async def _keep_clip(self, job: Job, record: ClipRecord, npz: bytes) -> None:
        ticket = self._open.get((job.key, job.id))
        if ticket is None:
            return
        if ticket.durable:
            await asyncio.to_thread(self.store.write_clip, job, record.seed, npz)
        ticket.npz[record.seed] = npz

    def _changed(self, job: Job) -> None:
        ticket = self._open.get((job.key, job.id))
        if ticket is not None:
            ticket.touch()
        self._may_start.set()

    # --- reading, cancelling, pausing ---

    async def clip(self, job: Job, seed: int) -> bytes | None:
        """The npz file of a clip; None when there is none (any more)."""
        ticket = self.find_here(job.key, job.id)
        if ticket is not None and seed in ticket.npz:
            return ticket.npz[seed]
        return await asyncio.to_thread(self.store.read_clip, job, seed)

    async def cancel(self, ticket: Ticket) -> None:
        """End a job of this process now; nothing for one that has ended."""
        if ticket.job.is_ended:
            return
        if ticket.task is not None and not ticket.task.done():
            if ticket.job.ended is None:  # else it is being kept this moment
                ticket.task.cancel()
            await asyncio.wait([ticket.task])
            if ticket.job.is_ended:
                return
        self._waiting.remove(ticket)
        ticket.job.state = "canceled"
        await self._end(ticket)

    async def pause(self, ticket: Ticket) -> None:
        """Hold a durable job back: what runs of it stops, finished clips stay."""
        job = ticket.job
        if job.is_ended or job.paused:
            return
        job.paused = ticket.pausing = True
        self._waiting.remove(ticket)
        if ticket.task is not None and not ticket.task.done():
            ticket.task.cancel()
            await asyncio.wait([ticket.task])
        if not job.is_ended:
            self._back_to_queued(job)
            await self.make_durable(ticket)
        ticket.touch()

    async def resume(self, ticket: Ticket) -> None:
        """Let a paused job go on."""
        job = ticket.job
        if job.is_ended or not job.paused:
            return
        job.paused = ticket.pausing = False
        await asyncio.to_thread(self.store.save, job)
        self.enqueue(ticket)
        ticket.touch()

    def _back_to_queued(self, job: Job) -> None:
        job.state = "queued"
        for clip in job.clips:
            if clip.state == "running":
                clip.state = "queued"

    def open_tickets(self) -> list[Ticket]:
        """Jobs of this process that have not ended."""
        return list(self._open.values())

    def waiting_seconds(self, key: str) -> float:
        """Seconds of motion of a key that wait or run here."""
        return sum(t.job.clip_seconds for t in self._open.values() if t.job.key == key)

    async def drain(self, within_s: float) -> None:
        """Take no more on, finish what is waited for, and leave the rest to others."""
        self.draining = True
        until = time.monotonic() + within_s
        waited_for = [
            t.task for t in self._open.values() if t.task is not None and t not in self._background
        ]
        if waited_for:
            await asyncio.wait(waited_for, timeout=within_s)
        running = [t.task for t in self._background if t.task is not None]
        if running:
            await asyncio.wait(running, timeout=max(0.0, until - time.monotonic()))
        for ticket in list(self._open.values()):
            if ticket.task is not None and not ticket.task.done():
                ticket.task.cancel()
                await asyncio.wait([ticket.task])
            if ticket.durable and not ticket.job.is_ended:
                self._back_to_queued(ticket.job)
                ticket.job.owner = ""
                await asyncio.to_thread(self.store.save, ticket.job)
        if self._writes:
            await asyncio.wait(self._writes, timeout=10.0)
        await asyncio.to_thread(self.store.leave, self.owner)
