"""Encoders and samplers of this process, so that everything above them is tested without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from hymotion_ray.api import load_model
from hymotion_ray.config.serve import PoolConfig, QueueConfig, ServeConfig, WarmUpConfig
from hymotion_ray.engine.serve.core import CoreSettings, SamplerCore
from hymotion_ray.engine.serve.router import PoolView, Router
from hymotion_ray.engine.serve.runner import Facts, ReplicaLostError, ServedPools
from hymotion_ray.engine.serve.work import ClipDone, Condition, Load, Progress, Work


class LocalEncoder:
    def __init__(self, model: str) -> None:
        self.model = load_model(model)

    async def facts(self) -> Facts:
        config = self.model.config
        return Facts(
            name=config.name,
            licence=config.licence,
            train_frames=config.train_frames,
            fps=config.fps,
            sampling=config.sampling,
            fingerprint=self.model.fingerprint,
        )

    async def encode(self, text: str) -> Condition:
        row = self.model.encode([text]).row(0)
        return Condition(name=text, context=row.context, vector=row.vector)


class LocalPool:
    """One replica; `lose` makes it fail as a dead one does."""

    def __init__(self, core: SamplerCore) -> None:
        self.core = core
        self.lost = False

    def lose(self) -> None:
        self.lost = True

    async def render(self, work: Work) -> AsyncIterator[Progress | ClipDone]:
        loop, clips = asyncio.get_running_loop(), asyncio.Queue()
        if self.lost:
            raise ReplicaLostError("it is dead")
        ticket = self.core.submit(
            work, lambda clip: loop.call_soon_threadsafe(clips.put_nowait, clip)
        )
        left = len(work.seeds)
        try:
            while left:
                try:
                    clip = await asyncio.wait_for(clips.get(), timeout=0.05)
                except TimeoutError:
                    if self.lost:
                        raise ReplicaLostError("it died") from None
                    yield Progress(
                        done=ticket.num_done, total=ticket.num_steps, load=self.core.load()
                    )
                    continue
                left -= 1
                yield clip
        finally:
            if left:
                self.core.cancel(ticket)

    async def loads(self, teller: str, waiting_s: float) -> list[Load]:
        if self.lost:
            raise ReplicaLostError("it is dead")
        self.core.waiting.hear(teller, waiting_s, time.monotonic())
        return [self.core.load()]


def make_core(
    model: str, pool: PoolConfig, queue: QueueConfig | None = None, replica: str = "local"
) -> SamplerCore:
    core = SamplerCore(
        CoreSettings(
            model=model,
            device="cpu",
            pool=pool,
            queue=queue or QueueConfig(),
            warm_up=WarmUpConfig(frames=(30,)),
            replica=replica,
        )
    )
    core.warm_up()
    core.start()
    return core


def make_pools(model: str, config: ServeConfig) -> tuple[ServedPools, dict[str, LocalPool]]:
    """The first model of a config, all its pools in this process."""
    pools = config.models[0].pools
    clients = {
        pool.name: LocalPool(make_core(model, pool, config.queue, pool.name)) for pool in pools
    }
    router = Router([PoolView(pool.name) for pool in pools], config.queue.max_wait_s)
    return ServedPools("", LocalEncoder(model), clients, router), clients
