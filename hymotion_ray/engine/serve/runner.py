"""One job from its text to its clips: encode, choose a pool, stream, and try again elsewhere.

Knows pools and encoders as objects with async calls (`clients.py` has Ray's), no HTTP and no files.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.config.serve import QueueConfig
from hymotion_ray.engine.serve.jobs import ClipRecord, Job
from hymotion_ray.engine.serve.router import PoolView, Router
from hymotion_ray.engine.serve.work import ClipDone, Condition, Load, Progress, Work
from hymotion_ray.errors import HyMotionError

logger = logging.getLogger("hymotion_ray.serve")
_KEPT_CONDITIONS = 2000
_SLOW_FACTOR, _SLOW_SLACK_S = 4.0, 5.0
_PAUSE_S = 0.5


class EncoderClient(Protocol):
    """Turns a text into a condition, somewhere."""

    async def encode(self, text: str) -> Condition:
        """Features of one prompt."""
        ...

    async def facts(self) -> Facts:
        """What the model is."""
        ...


class PoolClient(Protocol):
    """Samples work on a pool of replicas."""

    def render(self, work: Work) -> AsyncIterator[Progress | ClipDone]:
        """Signs of life and clips as they come; closing it cancels the work."""
        ...

    async def loads(self, teller: str, waiting_s: float) -> list[Load]:
        """What every replica that answers has to do.

        They are told that process `teller` holds back work which all together need `waiting_s` for.
        """
        ...


class ReplicaLostError(Exception):
    """The replica under a work died, or cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the HTTP side must know of a model."""

    name: str
    licence: str
    train_frames: int
    fps: int
    sampling: SamplingConfig
    fingerprint: str


@dataclass
class ServedPools:
    """A model as it is served."""

    label: str
    """Its name as far as known before it answers."""
    encoder: EncoderClient
    clients: Mapping[str, PoolClient]
    router: Router
    facts: Facts | None = None
    _conditions: OrderedDict[str, Condition] = field(default_factory=OrderedDict)

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.label or (self.facts.name if self.facts else "")

    async def condition(self, text: str) -> Condition:
        """The condition of a text; kept for its next request."""
        kept = self._conditions.get(text)
        if kept is None:
            kept = await self.encoder.encode(text)
            self._conditions[text] = kept
            if len(self._conditions) > _KEPT_CONDITIONS:
                self._conditions.popitem(last=False)
        else:
            self._conditions.move_to_end(text)
        return kept

    async def listen(self, teller: str, waiting: float) -> None:
        """Ask every pool what it has to do; `waiting` units are held back here until there is room.

        Their number of replicas follows both, so that work which nobody waits for counts too.
        """
        now = time.monotonic()
        speed = sum(pool.speed for pool in self.router.pools.values() if pool.usable(now))
        waiting_s = waiting / speed if speed else 0.0
        for name, client in self.clients.items():
            pool = self.router.pools[name]
            try:
                loads = await asyncio.wait_for(client.loads(teller, waiting_s), timeout=5.0)
            except (TimeoutError, ReplicaLostError):
                loads = []
            for load in loads:
                pool.hear(load, now)
            pool.forget_silent(time.monotonic())


@dataclass
class Runner:
    """Runs jobs of all models."""

    models: dict[str, ServedPools]
    queue: QueueConfig
    on_clip: Callable[[Job, ClipRecord, bytes], Any]
    """Called (and awaited) with each finished clip."""
    on_change: Callable[[Job], None]
    """Called whenever something about a job is new."""
    on_lost: Callable[[Job, int], None] = lambda job, num_clips: None
    """Called when a replica died under so many clips of a job."""

    async def run(self, job: Job, *, budget_s: float) -> None:
        """Bring every clip of a job to its end; those already ended are left alone.

        Cancelling the task frees the samplers' slots at once.
        """
        served = self.models[job.model]
        try:
            await self._run(job, served, budget_s)
        finally:
            served.router.coming.pop(job.id, None)

    async def _run(self, job: Job, served: ServedPools, budget_s: float) -> None:
        try:
            condition = await served.condition(job.text)
        except HyMotionError as error:
            self._fail_all(job, "encoding_failed", str(error))
            return
        job.truncated = condition.truncated
        lost = 0
        avoid: set[str] = set()
        while pending := [clip for clip in job.clips if clip.state in ("queued", "running")]:
            work = self._work(job, condition, [clip.seed for clip in pending], budget_s, lost)
            pool = served.router.choose(work.units, avoid)
            if pool is None:
                await asyncio.sleep(_PAUSE_S)
                continue
            job.pool = pool.name
            try:
                await self._stream(job, work, served, pool)
                served.router.succeeded(pool)
            except ReplicaLostError as error:
                lost += 1
                self.on_lost(job, len(pending))
                avoid = {pool.name}
                served.router.failed(pool)
                logger.warning("job %s lost its replica in pool %s: %s", job.id, pool.name, error)
                if lost >= self.queue.attempts:
                    text = f"{lost} replicas died or stalled under this job; the last: {error}"
                    self._fail_all(job, "replica_lost", text[:300])
                else:
                    await asyncio.sleep(_PAUSE_S)
            except _MovedError:
                avoid = {pool.name}

    def _work(
        self, job: Job, condition: Condition, seeds: list[int], budget_s: float, lost: int
    ) -> Work:
        return Work(
            id=f"{job.id}/{job.attempts}/{lost}",
            key=job.key,
            text=job.text,
            condition=condition,
            num_frames=job.num_frames,
            seeds=tuple(seeds),
            num_steps=job.num_steps,
            guidance_scale=job.guidance_scale,
            budget_s=budget_s,
        )

    async def _stream(self, job: Job, work: Work, served: ServedPools, pool: PoolView) -> None:
        """Take what a pool sends until every seed has ended."""
        began, predicted = time.monotonic(), pool.finish_s(work.units, time.monotonic())
        served.router.coming.pop(job.id, None)
        pool.sent[work.id] = work.units
        records = {clip.seed: clip for clip in job.clips}
        left = set(work.seeds)
        messages = served.clients[pool.name].render(work)
        try:
            while left:
                try:
                    message = await asyncio.wait_for(anext(messages), timeout=self.queue.stall_s)
                except StopAsyncIteration:
                    raise ReplicaLostError("it ended without all clips") from None
                except TimeoutError:
                    raise ReplicaLostError(
                        f"nothing was heard of it for {self.queue.stall_s:g} s"
                    ) from None
                now = time.monotonic()
                if message.load is not None:
                    pool.hear(message.load, now)
                if isinstance(message, Progress):
                    share = message.done / max(1, message.total)
                    pool.sent[work.id] = work.units * (1.0 - share)
                    self._progressed(job, work, share)
                    took = now - began
                    if took > _SLOW_FACTOR * predicted + _SLOW_SLACK_S:
                        self._move_if_better(served, pool, work, share, took)
                    continue
                left.discard(message.seed)
                await self._ended(job, records[message.seed], message)
        finally:
            rest = pool.sent.pop(work.id, 0.0)
            if left:
                pool.take_back(rest)
            await _close(messages)

    def _move_if_better(
        self, served: ServedPools, pool: PoolView, work: Work, share: float, took: float
    ) -> None:
        """Give up on a pool far slower than it seemed, when another would be done sooner."""
        now = time.monotonic()
        rest = took * (1.0 - share) / share if share > 0 else float("inf")
        others = [p for p in served.router.pools.values() if p is not pool and p.usable(now)]
        best = min((p.finish_s(work.units, now) for p in others), default=float("inf"))
        if best < 0.5 * rest:
            logger.warning("work %s moves away from the slow pool %s", work.id, pool.name)
            raise _MovedError

    def _progressed(self, job: Job, work: Work, share: float) -> None:
        ended = sum(clip.state not in ("queued", "running") for clip in job.clips)
        job.progress = (ended + share * len(work.seeds)) / len(job.clips)
        if share > 0:
            self._start(job)
        self.on_change(job)

    def _start(self, job: Job) -> None:
        if job.state == "queued":
            job.state, job.started = "running", time.time()
        for clip in job.clips:
            if clip.state == "queued":
                clip.state = "running"

    async def _ended(self, job: Job, record: ClipRecord, clip: ClipDone) -> None:
        self._start(job)
        record.info = clip.info
        if clip.npz is None:
            record.state = "failed"
            record.error = {"code": clip.code, "message": clip.error}
        else:
            record.bytes = len(clip.npz)
            record.sha256 = hashlib.sha256(clip.npz).hexdigest()
            await self.on_clip(job, record, clip.npz)
            record.state = "succeeded"
        ended = sum(c.state not in ("queued", "running") for c in job.clips)
        job.progress = max(job.progress, ended / len(job.clips))
        self.on_change(job)

    def _fail_all(self, job: Job, code: str, message: str) -> None:
        for clip in job.clips:
            if clip.state in ("queued", "running"):
                clip.state, clip.error = "failed", {"code": code, "message": message}


class _MovedError(Exception):
    """The work is to go to another pool."""


async def _close(messages: AsyncIterator[Progress | ClipDone]) -> None:
    close = getattr(messages, "aclose", None)
    if close is not None:
        await close()
