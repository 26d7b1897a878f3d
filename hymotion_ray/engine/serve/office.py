"""All that answers requests in one HTTP process: the desk, callers and their limits, metrics, mail.

Knows no HTTP routes and no Ray: `app.py` gives it clients and a way to reach the other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.batches import BatchRunner
from hymotion_ray.engine.serve.desk import Desk, Ticket
from hymotion_ray.engine.serve.jobs import Job, JobStore
from hymotion_ray.engine.serve.keeper import Keeper
from hymotion_ray.engine.serve.keys import Caller, KeyRing, Refusal, read_keys
from hymotion_ray.engine.serve.log import caller_name
from hymotion_ray.engine.serve.metrics import Metrics
from hymotion_ray.engine.serve.outbox import Outbox
from hymotion_ray.engine.serve.runner import Facts, ReplicaLostError, ServedPools
from hymotion_ray.engine.serve.schema import ModelView, MotionRequest, job_view
from hymotion_ray.engine.serve.usage import Ledger, Pace, admit_clip_seconds
from hymotion_ray.engine.serve.webhook_guard import ForbiddenTargetError, Guard
from hymotion_ray.engine.serve.webhooks import Sender, Signer, read_secret
from hymotion_ray.engine.serve.work import clip_units
from hymotion_ray.errors import HyMotionError
from hymotion_ray.formats.atomic import Store, open_store

logger = logging.getLogger("hymotion_ray.serve")
_LISTEN_S = 1.0
_FLUSH_S = 5.0
_SETTLE_S = 10.0
"""Seconds after its start in which requests wait until a process has heard of its pools."""
Reach = Callable[[str, str, str], Awaitable[bool]]
"""Ask the other HTTP processes to change a job: key, id, verb; whether one of them had it."""


def default_folder() -> str:
    """Where jobs are kept when no folder is named: of this machine and user, gone with /tmp."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return os.path.join(tempfile.gettempdir(), f"hymotion-serve-{user}")


class Office:
    """Its methods belong to one event loop."""

    def __init__(
        self,
        config: ServeConfig,
        models: list[ServedPools],
        *,
        reach: Reach | None = None,
        why_not: Callable[[], Awaitable[list[str]]] | None = None,
        to_ray: bool = True,
    ) -> None:
        """reach: for several HTTP processes; why_not: reasons that replicas do not start."""
        self.config, self.served = config, models
        self.on_ray = to_ray
        self.metrics = Metrics(to_ray=to_ray)
        self.store: Store = open_store(config.jobs.folder or default_folder())
        self._keys: KeyRing = read_keys(config.http.keys_file)
        self._pace = Pace(share=1.0 / config.http.replicas)
        self.ledger = Ledger(self.store)
        self._reach, self._why_not = reach, why_not
        self.by_name: dict[str, ServedPools] = {}
        jobs = JobStore(self.store)
        self.desk = Desk(config, self.by_name, jobs, on_end=self._ended)
        self.desk.runner.on_lost = self._lost
        self.keeper = Keeper(self.desk, config)
        self._guard = Guard(allowed_hosts=config.webhooks.allowed_hosts)
        self.signer: Signer | None = None
        self.outbox = self._make_outbox()
        self.batches: BatchRunner | None = None
        self._queues: set[tuple[str, str]] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._began = time.monotonic()

    def _make_outbox(self) -> Outbox | None:
        hooks = self.config.webhooks
        secret = os.environ.get(hooks.secret_env) if hooks.secret_env else None
        if not hooks.enabled or not secret:
            return None
        self.signer = read_secret(secret)
        return Outbox(self.store, Sender(self.signer, self._guard), self.metrics)

    # --- life ---

    async def open(self) -> None:
        """Start what runs beside requests."""
        loops: list[Awaitable[Any]] = [
            self._listen(),
            self.desk.run_background(),
            self.keeper.run(),
            self._flush(),
        ]
        if self.batches is not None:
            loops.append(self.batches.run())
        if self.outbox is not None:
            await self.outbox.load()
            loops.append(self.outbox.run())
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]

    async def close(self) -> None:
        """Finish what is waited for, leave the rest to others, stop."""
        await self.desk.drain(self.config.http.drain_s)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(HyMotionError):
            await asyncio.to_thread(self.ledger.flush)

    async def settle(self) -> None:
        """Wait while this process is new and has not heard of all its models.

        In a rolling upgrade it takes the place of one that knew them, and must refuse nobody.
        """
        while self._unready_models() and time.monotonic() < self._began + _SETTLE_S:
            await asyncio.sleep(0.05)

    async def _listen(self) -> None:
        while True:
            for served in self.served:
                try:
                    if served.facts is None:
                        served.facts = await asyncio.wait_for(served.encoder.facts(), timeout=5.0)
                    self.by_name.setdefault(served.name, served)
                    await served.listen(self.desk.owner, self.desk.held_back(served.name))
                except (TimeoutError, ReplicaLostError, HyMotionError) as error:
                    logger.debug("model %s does not answer: %s", served.label, error)
                except Exception:
                    logger.exception("model %s cannot be asked", served.label)
            self._gauge()
            await asyncio.sleep(_LISTEN_S)

    def _gauge(self) -> None:
        now = time.monotonic()
        ready = bool(self.by_name) and not self._unready_models()
        self.metrics.gauge("ready", float(ready))
        for served in self.by_name.values():
            for pool in served.router.pools.values():
                tags = {"pool": pool.name}
                loads = [load for load, _ in pool.loads.values()]
                running = {"pool": pool.name, "state": "running"}
                self.metrics.gauge("replicas", float(len(loads)), running)
                self.metrics.gauge("running_clips", float(sum(ld.live for ld in loads)), tags)
                self.metrics.gauge("predicted_wait_seconds", pool.wait_s(now), tags)
                facts = served.facts
                if facts is not None and loads:
                    own = facts.sampling
                    each = clip_units(facts.fps, own.num_steps, own.guidance_scale)
                    self.metrics.gauge("pace", pool.speed / each, tags)
        self._gauge_queue()

    def _gauge_queue(self) -> None:
        """What waits of this process's jobs, by pool and key; what no longer does is set to 0."""
        waiting: dict[tuple[str, str], tuple[int, float]] = dict.fromkeys(self._queues, (0, 0.0))
        for ticket in self.desk.open_tickets():
            job = ticket.job
            number = sum(clip.state == "queued" for clip in job.clips)
            queue = (job.pool or "any", job.key)
            clips, seconds = waiting.get(queue, (0, 0.0))
            waiting[queue] = (clips + number, seconds + number * job.num_frames / 30)
        self._queues = set(waiting)
        for (pool, key), (clips, seconds) in waiting.items():
            self.metrics.gauge("queued_clips", float(clips), {"pool": pool, "key": key})
            self.metrics.gauge("queued_clip_seconds", seconds, {"pool": pool, "key": key})

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await asyncio.to_thread(self.ledger.flush)
                await asyncio.to_thread(self.ledger.refresh)
            except HyMotionError as error:
                logger.error("GPU-seconds cannot be kept: %s", error)

    # --- requests ---

    def identify(self, request: Request) -> Caller:
        """The caller of a request; `Refusal` 401 or 403."""
        caller = self._keys.identify(request.headers.get("authorization"))
        caller_name.set(caller.name)
        request.state.key = caller.name
        return caller

    def caller_named(self, name: str) -> Caller:
        """The caller of work that outlived its request; `Refusal` 403 when the key is gone."""
        caller = self._keys.named(name)
        if caller is None:
            raise Refusal(403, "key_gone", f"the key {name!r} is no longer allowed on this server")
        return caller

    def admit_batch(self, caller: Caller) -> None:
        """`Refusal` when a caller may not begin a batch now; its lines are admitted one by one."""
        if self.desk.draining:
            raise Refusal(503, "draining", "this process is about to end; try again", 1.0)
        self._pace.admit(caller, time.monotonic())

    def make_job(
        self,
        body: MotionRequest,
        caller: Caller,
        job_id: str | None,
        make: Callable[..., Job],
        *,
        pay: bool = True,
    ) -> Job:
        """The job of a request, within what its key may ask for."""
        if not self.by_name:
            raise Refusal(503, "not_ready", "; ".join(self._unready_models()), 2.0)
        name = body.model if body.model is not None else next(iter(self.by_name))
        served = self.by_name.get(name)
        if served is None or served.facts is None:
            coming = [
                reason for one in self.served if one.name == name and (reason := _unready(one))
            ]
            if coming:
                raise Refusal(503, "not_ready", coming[0], 2.0)
            known = ", ".join(self.by_name)
            raise Refusal(422, "no_such_model", f"model is {name!r}; allowed: {known}")
        caller.require_model(name)
        if body.webhook is not None:
            self._check_webhook(body.webhook)
        if pay:
            self._pace.admit(caller, time.monotonic())
        limits, jobs = self.config.limits, self.config.jobs
        return make(
            body, served.facts, model=name, key=caller.name, job_id=job_id, limits=limits, jobs=jobs
        )

    def _check_webhook(self, url: str) -> None:
        if self.outbox is None:
            raise Refusal(422, "no_webhooks", "this server sends no webhooks; leave webhook out")
        try:
            self._guard.parse(url)
        except ForbiddenTargetError as error:
            raise Refusal(422, "bad_webhook", f"webhook: {error}") from error

    def admit(self, job: Job, caller: Caller, *, waits: bool) -> None:
        """`Refusal` when a job cannot be taken on now, with the time to come back."""
        served = self.by_name[job.model]
        now = time.monotonic()
        if waits and not any(pool.usable(now) for pool in served.router.pools.values()):
            reasons = self._unready_models() or ["no sampler answers"]
            raise Refusal(503, "not_ready", "; ".join(reasons), 2.0)
        self.ledger.admit(caller)
        waiting = self.desk.waiting_seconds(caller.name)
        admit_clip_seconds(caller, job.clip_seconds, waiting, None)
        self.desk.admit(job, waits=waits)

    async def change(self, key: str, job_id: str, verb: str) -> None:
        """Cancel, pause or resume a job, whichever process has it."""
        if await self.change_here(key, job_id, verb):
            return
        job = await self.desk.find(key, job_id)
        if job is None or job.is_ended:
            return
        if self._reach is not None and await self._reach(key, job_id, verb):
            return
        if not await self.keeper.take_over(key, job_id):
            raise Refusal(
                503, "owner_away", "the process that has this job does not answer; try again", 5.0
            )
        await self.change_here(key, job_id, verb)

    async def change_here(self, key: str, job_id: str, verb: str) -> bool:
        """Do it, if the job is this process's; whether it is."""
        ticket = self.desk.find_here(key, job_id)
        if ticket is None:
            return False
        steps: dict[str, Callable[[Ticket], Awaitable[None]]] = {
            "cancel": self.desk.cancel,
            "pause": self.desk.pause,
            "resume": self.desk.resume,
        }
        await steps[verb](ticket)
        return True

    # --- what there is ---

    def model_views(self, caller: Caller) -> list[ModelView]:
        """The models that a caller may use."""
        now = time.monotonic()
        views = []
        for name, served in self.by_name.items():
            facts = served.facts
            if facts is None or (caller.models is not None and name not in caller.models):
                continue
            pools = [
                {
                    "name": pool.name,
                    "replicas": pool.num_replicas,
                    "wait_s": round(pool.wait_s(now), 2),
                }
                for pool in served.router.pools.values()
            ]
            views.append(_view(name, facts, pools, not _unready(served)))
        return views

    async def unready(self) -> list[str]:
        """Why requests are not taken; empty when they are."""
        if self.desk.draining:
            return ["this process is about to end"]
        reasons = self._unready_models()
        if reasons and self._why_not is not None:
            reasons += await self._why_not()
        return reasons

    def _unready_models(self) -> list[str]:
        return [reason for served in self.served if (reason := _unready(served))]

    # --- ends of jobs ---

    def _lost(self, job: Job, num_clips: int) -> None:
        self.metrics.count("retried_clips", {"pool": job.pool}, num_clips)

    async def _ended(self, job: Job) -> None:
        metrics, tags = self.metrics, {"pool": job.pool, "key": job.key}
        metrics.count("jobs", {**tags, "state": job.state})
        done = [clip for clip in job.clips if clip.state == "succeeded"]
        metrics.count("clips", tags, len(done))
        metrics.count("clip_seconds", tags, len(done) * job.num_frames / 30)
        seconds = sum(float(clip.info.get("device_seconds", 0.0)) for clip in job.clips)
        metrics.count("gpu_seconds", tags, seconds)
        self.ledger.add(job.key, seconds)
        if job.state == "canceled":
            metrics.count("cancelled_clips", tags, len(job.clips) - len(done))
        metrics.observe("job_seconds", (job.ended or job.created) - job.created, {"pool": job.pool})
        logger.info(
            "job ended",
            extra={
                "job": job.id,
                "state": job.state,
                "job_request_id": job.request_id,
                "pool": job.pool,
                "clips": len(done),
                "took_s": round((job.ended or job.created) - job.created, 3),
            },
        )
        if job.webhook is not None and self.outbox is not None:
            event = {"type": f"motion.{job.state}", "data": job_view(job).model_dump(mode="json")}
            await self.outbox.post(f"msg_{job.id}", job.webhook, job.key, event)


def _view(name: str, facts: Facts, pools: list[dict[str, Any]], ready: bool) -> ModelView:
    return ModelView(
        id=name,
        licence=facts.licence,
        max_frames=facts.train_frames,
        fps=facts.fps,
        num_steps=facts.sampling.num_steps,
        guidance_scale=facts.sampling.guidance_scale,
        fingerprint=facts.fingerprint,
        pools=pools,
        ready=ready,
    )


def _unready(served: ServedPools) -> str:
    """Why a model does not take requests; "" when it does."""
    label = served.label or "the model"
    if served.facts is None:
        return f"{label}: the text encoder is loading"
    now = time.monotonic()
    if not any(pool.usable(now) for pool in served.router.pools.values()):
        return f"{label}: no sampler has taken a step yet"
    return ""
