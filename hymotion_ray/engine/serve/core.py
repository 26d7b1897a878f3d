"""A sampler replica without Ray: a model, a batcher, the thread that steps it, the one that ends.

The stepping thread does nothing but steps; decoding and packing happen in a second thread, and
callers are told from there. Knows no HTTP.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hymotion_ray.api import Model, load_model
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.sampling import Precision, SamplingConfig
from hymotion_ray.config.serve import PoolConfig, QueueConfig, WarmUpConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.device import device_name, set_threads
from hymotion_ray.engine.offloaded import OffloadedModel
from hymotion_ray.engine.serve.batcher import Batcher, BatchRules, Item, Outcome, StepSeen
from hymotion_ray.engine.serve.pace import WaitingElsewhere
from hymotion_ray.engine.serve.work import ClipDone, Load, Work
from hymotion_ray.errors import HyMotionError, SamplingError
from hymotion_ray.flow.stepwise import prepare_clip
from hymotion_ray.formats.motions import encode_motion
from hymotion_ray.motion.motion import Meta
from hymotion_ray.motion.quality import measure

logger = logging.getLogger("hymotion_ray.serve")


@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """What a sampler replica is told."""

    model: str
    """Built-in name, model folder or hf: address."""
    device: str
    """cpu or cuda."""
    pool: PoolConfig
    queue: QueueConfig
    warm_up: WarmUpConfig
    replica: str = "local"
    """Its name in loads and metrics."""

    def grid(self) -> Grid:
        """The cells."""
        return Grid.on_device(self.device, self.pool.rows)

    def rules(self) -> BatchRules:
        """How batches are made: padding to a longer batch's cell pays on GPUs only."""
        pays = self.device == "cuda" and not self.queue.exact
        return BatchRules(
            exact=self.queue.exact,
            max_padding=self.queue.max_padding if pays else 0.0,
            least_step_s=self.pool.least_step_s,
        )


@dataclass(eq=False)
class Ticket:
    """A `Work` under way."""

    work: Work
    on_clip: Callable[[ClipDone], None]
    """Called from another thread, once for each seed."""
    items: list[Item]

    @property
    def num_done(self) -> int:
        """Steps done, of all clips."""
        return sum(item.clip.num_done for item in self.items)

    @property
    def num_steps(self) -> int:
        """Steps of all clips."""
        return sum(len(item.clip.steps) for item in self.items)


class SamplerCore:
    """Takes work, gives clips."""

    def __init__(
        self, settings: CoreSettings, on_step: Callable[[StepSeen], None] = lambda seen: None
    ) -> None:
        """Load the model; `warm_up` and `start` come next."""
        self.settings = settings
        if settings.device == "cpu":
            set_threads(settings.pool.threads)
        self.device = device_name(settings.device)
        self._on_step = on_step
        self.model, self.batcher = self._load()
        self.waiting = WaitingElsewhere()
        self._wake = threading.Event()
        self._stopping = False
        self._finished: queue.SimpleQueue[tuple[Ticket, Item, Outcome] | None] = queue.SimpleQueue()
        self._step_began: float | None = None
        self.last_step = time.monotonic()
        self._dead: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._step_loop, name="steps", daemon=True),
            threading.Thread(target=self._finish_loop, name="finish", daemon=True),
        ]

    def _load(self) -> tuple[Model | OffloadedModel, Batcher]:
        """The model, and the batcher over this process's sampler or its group's."""
        settings, pool = self.settings, self.settings.pool
        precision: Precision = pool.precision
        if pool.split is not None:
            from hymotion_ray.engine.sampler_group import SamplerGroup

            group = SamplerGroup(
                settings.model,
                pool.split,
                precision=precision,
                grid=settings.grid(),
                cpu_threads=pool.threads,
                on_lost=_end_process,
            )
            self.device = group.device
            return group.model, Batcher(
                group.sampler, settings.rules(), on_step=self._stepped, new_run=group.new_run
            )
        model: Model | OffloadedModel
        if pool.offload == "layers":
            model = OffloadedModel(settings.model, settings.device, precision)
        else:
            model = load_model(settings.model, device=settings.device, dtype=precision)
        sampler = model.new_sampler(settings.grid())
        return model, Batcher(sampler, settings.rules(), on_step=self._stepped)

    def warm_up(self) -> float:
        """Take real steps in the usual cells, and bring one clip to its npz; seconds it took.

        `SamplingError` when that lasts longer than its deadline or no finite motion comes of it.
        """
        began = time.monotonic()
        rules = self.settings.warm_up
        sampling = self.model.config.sampling
        for tokens in rules.tokens:
            for frames in rules.frames:
                frames = min(frames, self.model.config.train_frames)
                for number in self._warm_numbers():
                    self._warm_cell(frames, tokens, number, sampling, began)
        one = dataclasses.replace(sampling, num_steps=2)
        outcomes = self._run_alone(rules.frames[0] if rules.frames else 20, 1, 1, one, began)
        latent = outcomes[0].latent
        if latent is None:
            raise SamplingError(f"the warm-up clip failed: {outcomes[0].error}")
        encode_motion(self.model.decode(latent), "npz")
        return time.monotonic() - began

    def _warm_numbers(self) -> list[int]:
        """Clips at once to warm up with, the most first.

        On a GPU each number of rows that a step computes is captured by itself.
        """
        rows = self.batcher.sampler.grid.rows
        if self.settings.device != "cuda" or self.settings.queue.exact:
            return [rows, 1]
        return [rows, *(2**power for power in reversed(range((rows - 1).bit_length())))]

    def _warm_cell(
        self, frames: int, tokens: int, number: int, sampling: SamplingConfig, began: float
    ) -> None:
        few = dataclasses.replace(sampling, num_steps=min(sampling.num_steps, 4))
        self._run_alone(frames, tokens, number, few, began)

    def _run_alone(
        self, frames: int, tokens: int, number: int, sampling: SamplingConfig, began: float
    ) -> list[Outcome]:
        network = self.model.config.network
        outcomes: list[Outcome] = []
        context = torch.zeros(tokens, network.ctxt_input_dim)
        vector = torch.zeros(network.vtxt_input_dim)
        items = [
            Item(
                clip=prepare_clip(
                    self.batcher.sampler, ("warm-up", tokens), context, vector,
                    min(max(frames, 1), self.model.config.train_frames), seed, sampling,
                ),
                key="",
                deadline=0.0,
                on_end=lambda item, outcome: outcomes.append(outcome),
            )
            for seed in range(number)
        ]  # fmt: skip
        self.batcher.submit(items)
        while self.batcher.work():
            faults.reach("warm-up")
            if time.monotonic() - began > self.settings.warm_up.deadline_s:
                raise SamplingError(
                    f"the warm-up took longer than {self.settings.warm_up.deadline_s:g} s; raise"
                    " warm_up.deadline_s, or warm up fewer cells"
                )
        return outcomes

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads after the step in hand."""
        self._stopping = True
        self._wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)

    def submit(self, work: Work, on_clip: Callable[[ClipDone], None]) -> Ticket:
        """Queue the clips of a request; `ConfigError` for what cannot be sampled."""
        sampling = dataclasses.replace(
            self.model.config.sampling,
            num_steps=work.num_steps,
            guidance_scale=work.guidance_scale,
        )
        deadline = time.monotonic() + work.budget_s
        ticket = Ticket(work, on_clip, [])

        def end(item: Item, outcome: Outcome) -> None:
            self._finished.put((ticket, item, outcome))

        ticket.items = [
            Item(
                clip=prepare_clip(
                    self.batcher.sampler, work.condition.name, work.condition.context,
                    work.condition.vector, work.num_frames, seed, sampling,
                ),
                key=work.key,
                deadline=deadline,
                on_end=end,
            )
            for seed in work.seeds
        ]  # fmt: skip
        self.batcher.submit(ticket.items)
        self._wake.set()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Free the slots of a request before the next step."""
        self.batcher.cancel(ticket.items)

    def load(self) -> Load:
        """What there is to do, and how fast it goes."""
        live, queued, units = self.batcher.counts()
        return Load(
            replica=self.settings.replica,
            backlog=units,
            speed=self.batcher.gauge.speed,
            live=live,
            queued=queued,
        )

    def backlog_s(self) -> float:
        """Seconds of work that wait or run here, and that wait for any sampler elsewhere."""
        load = self.load()
        own = load.backlog / load.speed if load.speed else 0.0
        return own + self.waiting.seconds(time.monotonic())

    def check(self) -> None:
        """Raise `SamplingError` when the stepping thread is dead or stuck; being busy is healthy.

        A replica that is idle takes a real step of a clip of its own.
        """
        if self._dead is not None:
            raise SamplingError(f"the stepping thread has ended: {self._dead}")
        began, limit = self._step_began, self.settings.queue.stall_s
        if began is not None and time.monotonic() - began > limit:
            raise SamplingError(f"a step has taken more than {limit:g} s")
        if self.batcher.counts()[0] or time.monotonic() - self.last_step < 5.0:
            return
        done = threading.Event()
        probe = self.submit(self._probe(), lambda clip: done.set())
        if not done.wait(timeout=min(25.0, limit)) and not self.batcher.counts()[1] > 1:
            self.cancel(probe)
            raise SamplingError("a step of two frames did not end")

    def _probe(self) -> Work:
        from hymotion_ray.engine.serve.work import Condition

        network = self.model.config.network
        condition = Condition(
            name="health",
            context=torch.zeros(1, network.ctxt_input_dim),
            vector=torch.zeros(network.vtxt_input_dim),
        )
        return Work(
            id="health", key="", text="", condition=condition, num_frames=20, seeds=(0,),
            num_steps=1, guidance_scale=1.0, budget_s=1.0,
        )  # fmt: skip

    def _stepped(self, seen: StepSeen) -> None:
        self.last_step = time.monotonic()
        self._on_step(seen)

    def _step_loop(self) -> None:
        try:
            while not self._stopping:
                self._step_began = time.monotonic()
                faults.reach("serve-step", self.settings.replica)
                busy = self.batcher.work()
                self._step_began = None
                if not busy:
                    self._wake.wait(timeout=1.0)
                    self._wake.clear()
        except BaseException as error:
            self._dead = error
            logger.exception("the stepping thread ended")
            raise
        finally:
            self._finished.put(None)

    def _finish_loop(self) -> None:
        while (entry := self._finished.get()) is not None:
            ticket, item, outcome = entry
            try:
                clip = self._clip(ticket.work, item, outcome)
            except Exception as error:
                logger.exception("clip of %s cannot be finished", ticket.work.id)
                code = "export_failed" if isinstance(error, HyMotionError) else "internal"
                clip = ClipDone(seed=item.clip.seed, npz=None, code=code, error=f"{error}"[:300])
            ticket.on_clip(clip)

    def _clip(self, work: Work, item: Item, outcome: Outcome) -> ClipDone:
        now = time.monotonic()
        started = item.started if item.started is not None else now
        info = {
            "device": self.device,
            "cell": item.cell,
            "precision": self.model.precision,
            "degradations": "; ".join(dict.fromkeys(item.notes)),
            "seconds": round(now - started, 4),
            "device_seconds": round(item.device_seconds, 4),
            "queue_seconds": round(started - item.submitted, 4),
        }
        seed = item.clip.seed
        if outcome.latent is None:
            return ClipDone(
                seed=seed, npz=None, info=info, code=outcome.code, error=outcome.error,
                load=self.load(),
            )  # fmt: skip
        motion = self.model.decode(outcome.latent)
        # The same fields as in `render`, so that the same clip has the same bytes.
        meta: Meta = {
            "prompt": work.text,
            "seed": seed,
            "model": self.model.config.name,
            "licence": self.model.config.licence,
        }
        quality = measure(motion)
        numbers = {n: getattr(quality, n) for n in ("skate", "float", "jitter", "facing")}
        info["quality"] = {n: None if v is None else round(float(v), 5) for n, v in numbers.items()}
        npz = encode_motion(dataclasses.replace(motion, meta=meta), "npz")
        info["finish_seconds"] = round(time.monotonic() - now, 4)
        return ClipDone(seed=seed, npz=npz, info=info, load=self.load())


def _end_process(error: Exception) -> None:
    """End this replica at once: requests go to another, and Serve starts a new group."""
    logger.error("%s", error)
    os._exit(1)
