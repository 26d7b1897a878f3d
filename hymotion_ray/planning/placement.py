"""Where the encoder and the samplers of a job go in a pool of unlike cards, and at what size.

Every arrangement that fits is tried and the fastest taken. An arrangement that changes results (a
quantised encoder) is only taken when no other fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.sampling import Precision as AskedPrecision
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.catalogue import Gpu
from hymotion_ray.planning.memory import (
    GIB,
    EncoderPrecision,
    Memory,
    Precision,
    encoder_memory,
    sampling_memory,
)
from hymotion_ray.planning.speed import encoding_rate, sampling_rate

ROWS = (64, 32, 16, 8, 4, 2, 1)
"""Sizes of a batch that are tried, the largest first."""
MARGIN = 0.95
"""Share of a card's memory that is planned with; the rest is for fragmentation."""
CPU_ENCODING_RATE = 0.4
"""Prompts a second of Qwen3-8B on a 32-core host in bf16, computed from 0.22 TFLOP/s; not
measured."""
_ENCODER_ROWS = 16

EncoderPlace = Literal["none", "shared", "own card", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be sampled."""

    network: NetworkConfig
    has_encoder: bool
    """Whether texts go through Qwen3-8B and CLIP-L, as the releases' do."""
    num_frames: int
    num_tokens: int
    seeds: int
    evaluations: int
    """Of the network a clip: steps times the solver's stages."""
    null_evaluations: int | None = None
    """As `sampling_seconds` takes them."""
    precision: AskedPrecision = "auto"
    """As `render` takes it."""

    def precision_on(self, gpu: Gpu) -> Precision:
        """What samplers hold their weights in on this card.

        Raises `ConfigError` for a format that its matrix units lack.
        """
        least = {"float8": (8, 9), "bfloat16": (8, 0)}.get(self.precision, (0, 0))
        if gpu.capability < least:
            raise ConfigError(
                f"precision is {self.precision!r}, and {gpu.name} has compute capability "
                f"{gpu.capability[0]}.{gpu.capability[1]}; allowed: cards from {least[0]}."
                f"{least[1]} on, or precision auto"
            )
        if self.precision == "auto" or self.precision == "float8":
            return sampling_precision(gpu)
        return self.precision


@dataclass(frozen=True, kw_only=True)
class Samplers:
    """The samplers on the cards of one kind."""

    gpu: Gpu
    num_gpus: int
    rows: int
    memory: Memory
    share: float
    """Of a card that each takes."""
    clips_per_s: float
    """Of all of them together."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """One way to place the stages."""

    samplers: tuple[Samplers, ...]
    encoder_place: EncoderPlace
    encoder_gpu: Gpu | None
    encoder_precision: EncoderPrecision
    encoder_memory: Memory
    encoder_share: float
    prompts_per_s: float
    """That the encoder could do; infinite without one."""
    clips_per_s: float
    reason: str

    @property
    def changes_results(self) -> bool:
        """Whether its features differ from those of the exact arrangement."""
        return self.encoder_precision != "bfloat16" and self.encoder_place != "cpu"


def arrange(pool: Mapping[str, tuple[Gpu, int]], work: Workload) -> list[Arrangement]:
    """All arrangements that fit `pool` (kind: card and number), the best first.

    Raises `ConfigError` naming what would fit when none does.
    """
    found = [a for a in _candidates(pool, work) if a is not None]
    if not found:
        raise ConfigError(_nearest(pool, work))
    return sorted(found, key=lambda a: (a.changes_results, -a.clips_per_s))


def _candidates(
    pool: Mapping[str, tuple[Gpu, int]], work: Workload
) -> Iterator[Arrangement | None]:
    if not work.has_encoder:
        yield _finish(pool, work, None, "none", "bfloat16", "the text vectors lie in the model")
        return
    for kind, (gpu, _) in pool.items():
        for precision in ("bfloat16", "int8", "4bit"):
            words = f"the encoder in {precision} shares one {gpu.name} with a sampler"
            yield _finish(pool, work, kind, "shared", precision, words)
            words = f"the encoder in {precision} has one {gpu.name} to itself"
            yield _finish(pool, work, kind, "own card", precision, words)
    words = "the encoder runs on CPU: 16 GiB of host memory, slow"
    yield _finish(pool, work, None, "cpu", "bfloat16", words)


def _finish(
    pool: Mapping[str, tuple[Gpu, int]],
    work: Workload,
    host: str | None,
    place: EncoderPlace,
    precision: EncoderPrecision,
    reason: str,
) -> Arrangement | None:
    """The arrangement with the encoder on one card of kind `host`, or None if it does not fit."""
    encoder = encoder_memory(precision, _ENCODER_ROWS)
    host_gpu = pool[host][0] if host else None
    if host_gpu and encoder.total > MARGIN * host_gpu.memory_bytes:
        return None
    groups: list[Samplers] = []
    for kind, (gpu, number) in pool.items():
        alone = number - (kind == host)
        if alone:
            groups += _group(gpu, alone, work, 0, 1.0)
        if kind == host and place == "shared":
            beside = _group(gpu, 1, work, encoder.total, 1.0)
            if not beside:
                return None
            groups += beside
    if not groups:
        return None
    rate = sum(g.clips_per_s for g in groups)
    prompts = float("inf")
    share = 0.0
    if place != "none":
        prompts = encoding_rate(host_gpu) if host_gpu else CPU_ENCODING_RATE
        share = encoder.total / (host_gpu.memory_bytes * MARGIN) if host_gpu else 0.0
        if place == "shared":
            # Both work in turn on that card: encoding takes time from its sampler.
            busy = min(1.0, rate / work.seeds / prompts)
            own = groups[-1]
            groups[-1] = replace(own, share=1 - share, clips_per_s=own.clips_per_s * (1 - busy))
            rate -= own.clips_per_s * busy
        rate = min(rate, prompts * work.seeds)
    return Arrangement(
        samplers=tuple(groups),
        encoder_place=place,
        encoder_gpu=host_gpu,
        encoder_precision=precision,
        encoder_memory=encoder if place != "none" else Memory(),
        encoder_share=round(share, 2) if place == "shared" else float(place == "own card"),
        prompts_per_s=prompts,
        clips_per_s=rate,
        reason=reason,
    )


def _group(gpu: Gpu, number: int, work: Workload, taken: int, share: float) -> list[Samplers]:
    """Samplers on `number` cards with `taken` bytes gone of each, at the largest batch."""
    for rows in ROWS:
        memory = sampler_memory(gpu, work, rows, gpu.memory_bytes - taken)
        if memory.total + taken <= MARGIN * gpu.memory_bytes:
            rate = sampling_rate(
                work.network,
                gpu,
                rows=rows,
                num_frames=work.num_frames,
                num_tokens=work.num_tokens,
                seeds=min(work.seeds, rows),
                evaluations=work.evaluations,
                null_evaluations=work.null_evaluations,
                precision=work.precision_on(gpu),
                float8=work.precision == "float8",
            )
            return [
                Samplers(
                    gpu=gpu,
                    num_gpus=number,
                    rows=rows,
                    memory=memory,
                    share=share,
                    clips_per_s=number * rate,
                )
            ]
    return []


def sampler_memory(
    gpu: Gpu, work: Workload, rows: int, card_bytes: int, *, offload: bool = False
) -> Memory:
    """Memory of one sampler on `gpu`, of which it may take `card_bytes`."""
    return sampling_memory(
        work.network,
        rows=rows,
        num_frames=work.num_frames,
        num_tokens=work.num_tokens,
        seeds=min(work.seeds, rows),
        guidance=work.null_evaluations != 0,
        precision=work.precision_on(gpu),
        card_bytes=card_bytes,
        offload=offload,
    )


def sampling_precision(gpu: Gpu) -> Precision:
    """What the sampler computes in on this card: as the device policy chooses."""
    if gpu.has_bfloat16:
        return "bfloat16"
    return "float16" if gpu.capability >= (7, 0) else "float32"


def _nearest(pool: Mapping[str, tuple[Gpu, int]], work: Workload) -> str:
    gpu = max((g for g, _ in pool.values()), key=lambda g: g.memory_bytes)
    needed = sampler_memory(gpu, work, 1, gpu.memory_bytes).total / MARGIN / GIB
    least = sampler_memory(gpu, work, 1, gpu.memory_bytes, offload=True).total / MARGIN
    there = ""
    if least <= gpu.memory_bytes and work.precision != "float8":
        there = (
            "render --offload layers --rows 1 on this card, weights in host memory "
            f"({least / GIB:.1f} GiB, slower), "
        )
    return (
        f"no card of the pool can hold the sampler: one clip at a time takes {needed:.1f} GiB, the "
        f"largest card, {gpu.name}, has {gpu.usable_gib}; allowed: {there}a card of at least "
        f"{needed:.1f} GiB, the smaller model (--model lite), or a CPU without --gpus"
    )
