"""What Ray Serve runs beside the HTTP processes: text encoders and samplers.

Thin: an encoder wraps `text`, a sampler wraps `core.SamplerCore`. Models are loaded and cells
warmed in the constructor, so that a replica counts as running only after real steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve

from hymotion_ray.config.fields import from_mapping
from hymotion_ray.config.serve import EncoderConfig, PoolConfig, QueueConfig, WarmUpConfig
from hymotion_ray.engine.device import cap_gpu_memory, device_of_this_process, set_threads
from hymotion_ray.engine.serve.batcher import StepSeen
from hymotion_ray.engine.serve.core import CoreSettings, SamplerCore
from hymotion_ray.engine.serve.metrics import Metrics
from hymotion_ray.engine.serve.runner import Facts
from hymotion_ray.engine.serve.work import (
    ClipDone,
    Condition,
    Load,
    Progress,
    Work,
    progress_pause_s,
)
from hymotion_ray.errors import HyMotionError
from hymotion_ray.formats.models.checkpoint import read_model
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.text.encoder import TextEncoder
from hymotion_ray.text.load import load_encoder

_MOST_TEXTS = 64


class EncoderReplica:
    """Encodes texts: whatever has come in while the last batch was computed goes next."""

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        """Load the text encoder of `model`; `settings` is an `EncoderConfig`."""
        config = from_mapping(EncoderConfig, settings, "encoder")
        device = device_of_this_process()
        cap_gpu_memory()
        if device == "cpu":
            set_threads(1)
        path = model_folder(model)
        held = read_model(path)
        self._facts = Facts(
            name=held.config.name,
            licence=held.config.licence,
            train_frames=held.config.train_frames,
            fps=held.config.fps,
            sampling=held.config.sampling,
            fingerprint=held.fingerprint,
        )
        self._encoder: TextEncoder = load_encoder(
            held.config.text,
            path if Path(path).is_dir() else Path(path).parent,
            placement=replace(config.text, device=device),
            llm_path=config.llm_path,
            clip_path=config.clip_path,
            template=held.prompt_template,
            expected_context_dim=held.config.network.ctxt_input_dim,
            expected_vector_dim=held.config.network.vtxt_input_dim,
        )
        self._encoder.encode(["a person walks"])
        self._waiting: list[tuple[str, asyncio.Future[Condition]]] = []
        self._at_work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "encode")

    async def facts(self) -> Facts:
        """What the model is."""
        return self._facts

    async def encode(self, text: str) -> Condition:
        """Features of one prompt; `HyMotionError` for one that cannot be encoded."""
        future: asyncio.Future[Condition] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, future))
        if self._at_work is None or self._at_work.done():
            # A task of its own: whoever came first would otherwise wait for all who came after.
            self._at_work = asyncio.create_task(self._encode_all())
        return await future

    async def _encode_all(self) -> None:
        while self._waiting:
            part = self._waiting[:_MOST_TEXTS]
            del self._waiting[:_MOST_TEXTS]
            await self._encode(part)

    async def _encode(self, part: list[tuple[str, asyncio.Future[Condition]]]) -> None:
        loop = asyncio.get_running_loop()
        alive = [(text, future) for text, future in part if not future.cancelled()]
        if not alive:
            return
        results = await loop.run_in_executor(self._thread, self._rows, [t for t, _ in alive])
        for (_, future), result in zip(alive, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _rows(self, texts: list[str]) -> list[Condition | Exception]:
        """A condition a text, or the reason why there is none; one bad text spoils no other."""
        try:
            condition = self._encoder.encode(texts)
        except Exception as error:  # noqa: BLE001 - tried again one by one
            if len(texts) == 1:
                return [error if isinstance(error, HyMotionError) else RuntimeError(f"{error}")]
            return [self._rows([text])[0] for text in texts]
        found: list[Condition | Exception] = []
        for place, text in enumerate(texts):
            row = condition.row(place)
            found.append(
                Condition(
                    name=_name(self._encoder, text),
                    context=row.context.cpu(),
                    vector=row.vector.cpu(),
                    truncated=condition.truncation(place),
                )
            )
        return found

    async def check_health(self) -> None:
        """Encode a text for real."""
        await asyncio.wait_for(self.encode("a person walks"), timeout=25.0)


def _name(encoder: TextEncoder, text: str) -> str:
    return hashlib.sha256(f"{encoder.fingerprint}\0{text}".encode()).hexdigest()[:32]


class SamplerReplica:
    """One model on one device."""

    def __init__(
        self,
        model: str,
        pool: Mapping[str, Any],
        queue: Mapping[str, Any],
        warm_up: Mapping[str, Any],
    ) -> None:
        """Load, warm up and start; the mappings are the config sections of these names."""
        began = time.monotonic()
        cap_gpu_memory()
        self._pool = from_mapping(PoolConfig, pool, "pool")
        self._metrics = Metrics()
        self._told_out_of_memory = 0
        self._num_works = 0
        self._core = SamplerCore(
            CoreSettings(
                model=model,
                device=device_of_this_process(),
                pool=self._pool,
                queue=from_mapping(QueueConfig, queue, "queue"),
                warm_up=from_mapping(WarmUpConfig, warm_up, "warm_up"),
                replica=serve.get_replica_context().replica_id.unique_id,
            ),
            self._stepped,
        )
        self._core.warm_up()
        self._core.start()
        self._tags = {"pool": self._pool.name}
        self._metrics.count("cold_starts", self._tags)
        self._metrics.observe("cold_start_seconds", time.monotonic() - began, self._tags)

    async def render(self, work: Work) -> AsyncIterator[Progress | ClipDone]:
        """Clips as they come, and signs of life between; cancelled when the caller goes away."""
        loop = asyncio.get_running_loop()
        clips: asyncio.Queue[ClipDone] = asyncio.Queue()

        def take(clip: ClipDone) -> None:
            loop.call_soon_threadsafe(clips.put_nowait, clip)

        ticket = self._core.submit(work, take)
        left, stall_s = len(work.seeds), self._core.settings.queue.stall_s
        self._num_works += 1
        try:
            while left:
                pause = progress_pause_s(self._num_works, stall_s)
                try:
                    clip = await asyncio.wait_for(clips.get(), timeout=pause)
                except TimeoutError:
                    yield Progress(
                        done=ticket.num_done, total=ticket.num_steps, load=self._core.load()
                    )
                    continue
                left -= 1
                waited = clip.info.get("queue_seconds")
                if waited is not None:
                    self._metrics.observe("queue_seconds", waited, self._tags)
                yield clip
        finally:
            self._num_works -= 1
            if left:
                self._core.cancel(ticket)

    async def load(self, teller: str, waiting_s: float) -> Load:
        """What there is to do, and how fast it goes; the caller tells what it still holds back."""
        self._core.waiting.hear(teller, waiting_s, time.monotonic())
        return self._core.load()

    async def check_health(self) -> None:
        """Raise when the stepping thread is dead or stuck; a busy one is healthy."""
        await asyncio.to_thread(self._core.check)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Seconds of work that wait or run here, for `scaling.py`."""
        return {"backlog_s": self._core.backlog_s()}

    def _stepped(self, seen: StepSeen) -> None:
        tags, metrics = {"pool": self._pool.name}, self._metrics
        lacking = self._core.batcher.num_out_of_memory - self._told_out_of_memory
        if lacking:
            self._told_out_of_memory += lacking
            metrics.count("out_of_memory", tags, lacking)
        if seen.started:
            metrics.count("batches_run", tags)
        metrics.observe("step_seconds", seen.seconds, tags)
        metrics.observe("batch_fill", seen.live / seen.rows, tags)
        metrics.observe("padding_waste", 1.0 - seen.frames_asked / (seen.rows * seen.frames), tags)
