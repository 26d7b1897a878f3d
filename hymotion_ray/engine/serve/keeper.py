"""Jobs whose process died are taken over, and what is too old is swept away.

Every process that has durable jobs gives a sign of life; open jobs of a process without one are
anyone's. Two that reach for one job at once both write their name, look again, and the one whose
name stands goes on. Should both go on, the clips they make are the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.desk import Desk, Ticket
from hymotion_ray.engine.serve.jobs import Job
from hymotion_ray.errors import HyMotionError

logger = logging.getLogger("hymotion_ray.serve")
BEAT_S = 2.0
DEAD_S = 10.0
_LOOK_S = 5.0
_SETTLE_S = 0.5
_SWEEP_S = 600.0
_MOST_ATTEMPTS = 20
"""Processes that may take a job up before it is given up: a job can hardly be their end."""


class Keeper:
    """Watches the jobs' folder for one process."""

    def __init__(self, desk: Desk, config: ServeConfig) -> None:
        self._desk, self._config = desk, config
        self._swept = time.monotonic()

    async def run(self) -> None:
        """Beat, look for orphans and sweep, for ever."""
        looked = -_LOOK_S
        while True:
            try:
                if any(ticket.durable for ticket in self._desk.open_tickets()):
                    await asyncio.to_thread(self._desk.store.beat, self._desk.owner)
                if time.monotonic() - looked >= _LOOK_S and not self._desk.draining:
                    looked = time.monotonic()
                    await self._look()
                if time.monotonic() - self._swept > _SWEEP_S:
                    self._swept = time.monotonic()
                    ttl = self._config.jobs.result_ttl_s
                    await asyncio.to_thread(self._desk.store.sweep, ttl, time.time())
            except HyMotionError as error:
                logger.error("the jobs' folder does not answer: %s", error)
            except Exception:
                logger.exception("looking after jobs failed; trying again")
            await asyncio.sleep(BEAT_S)

    async def _look(self) -> None:
        store = self._desk.store
        for key, job_id in await asyncio.to_thread(store.open_jobs):
            if self._desk.find_here(key, job_id) is None:
                await self.take_over(key, job_id)

    async def take_over(self, key: str, job_id: str) -> bool:
        """Make a job of a dead process this one's; False when it is alive or the job has ended."""
        desk, store = self._desk, self._desk.store
        job = await asyncio.to_thread(store.find, key, job_id)
        if job is None or job.is_ended:
            await asyncio.to_thread(store.close, key, job_id)
            return False
        if job.owner in await asyncio.to_thread(store.living, DEAD_S):
            return False
        job.owner = desk.owner
        await asyncio.to_thread(store.beat, desk.owner)
        await asyncio.to_thread(store.save, job)
        if self._config.http.replicas > 1:
            await asyncio.sleep(_SETTLE_S * random.uniform(1.0, 1.5))
            job = await asyncio.to_thread(store.find, key, job_id)
            if job is None or job.is_ended or job.owner != desk.owner:
                return False
        if desk.find_here(key, job_id) is not None:
            return True
        await self._recover(job)
        logger.warning("job %s of a process that is gone goes on here", job_id)
        desk.enqueue(Ticket(job, durable=True))
        return True

    async def _recover(self, job: Job) -> None:
        """Keep the clips that were finished, and count the others as not begun."""
        job.state = "queued"
        for clip in job.clips:
            npz = await asyncio.to_thread(self._desk.store.read_clip, job, clip.seed)
            if clip.state == "failed":
                continue
            if clip.state == "succeeded" and npz is not None:
                continue
            clip.state = "queued"
        if job.attempts >= _MOST_ATTEMPTS:
            for clip in job.clips:
                if clip.state == "queued":
                    clip.state = "failed"
                    clip.error = {
                        "code": "given_up",
                        "message": f"{job.attempts} processes ended while they had this job",
                    }
