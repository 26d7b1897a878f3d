"""The plan that an endpoint carries out, what it expects of its samplers, and what they did.

Knows configs, cards and the endpoint's own counters. Reckons with the first model's first pool, and
with clips of 5 s in full batches: what an endpoint reaches when it has enough to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from hymotion_ray.config.grid import Grid
from hymotion_ray.config.model import ModelConfig
from hymotion_ray.config.serve import PoolConfig, ServeConfig, ServedModel
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.plan_check import usd_per_hour
from hymotion_ray.engine.serve.metrics import PREFIX
from hymotion_ray.formats.models.checkpoint import read_model
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.planning.carried import Expected, PlanFile
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.evaluations import null_evaluations, text_evaluations
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB, sampling_memory
from hymotion_ray.planning.placement import ROWS, sampling_precision
from hymotion_ray.planning.speed import clip_flops, sampling_rate

_FRAMES, _TOKENS = 150, 36


def carried_out(config: ServeConfig, plan: PlanFile) -> ServeConfig:
    """The config with what it leaves open as the plan has it.

    Raises `ConfigError` for a plan of another network than a served one's.
    """
    models = []
    for served in config.models:
        plan.require_model(_model(served).network)
        models.append(_planned(served, plan))
    return dataclasses.replace(config, models=tuple(models))


def _planned(served: ServedModel, plan: PlanFile) -> ServedModel:
    rows, share = (plan.settings.get(f"resources.{name}") for name in ("rows", "encoder_gpus"))
    encoder = served.encoder
    if encoder.gpus is None and share is not None:
        encoder = dataclasses.replace(encoder, gpus=float(share))

    def pool(one: PoolConfig) -> PoolConfig:
        return one if one.rows or not rows else dataclasses.replace(one, rows=int(rows))

    return dataclasses.replace(served, encoder=encoder, pools=tuple(map(pool, served.pools)))


def expected_serving(
    config: ServeConfig, cards: Sequence[Card], plan: PlanFile | None = None
) -> Expected | None:
    """Of one sampler, as `plan` has it or reckoned here.

    None where the first card is of no kind that the catalogue knows.
    """
    if plan is not None:
        rate = plan.expected.clips_per_s / max(1, sum(plan.gpus.values()))
        return dataclasses.replace(plan.expected, clips_per_s=rate, start_s=0.0)
    served = config.models[0]
    model, pool = _model(served), served.pools[0]
    network = model.network
    if not cards:
        flops = clip_flops(
            network,
            num_frames=_FRAMES,
            num_tokens=_TOKENS,
            seeds=1,
            evaluations=text_evaluations(model.sampling),
            null_evaluations=null_evaluations(model.sampling),
        )
        rate = pool.threads * fitted().speed.cpu_core_flops / flops
        return Expected(source="made by this run, for CPUs", clips_per_s=rate, start_s=0.0)
    catalogue = load_catalogue()
    gpu = catalogue.kind_of(cards[0].name, cards[0].num_bytes)
    if gpu is None:
        return None
    rows = pool.rows or ROWS[0]
    precision = sampling_precision(gpu) if pool.precision == "auto" else pool.precision
    memory = sampling_memory(
        network,
        rows=rows,
        num_frames=model.train_frames,
        num_tokens=Grid().cell(1, _TOKENS, model.train_frames).tokens,
        num_steps=model.sampling.num_steps,
        precision=precision,
        card_bytes=gpu.memory_bytes,
    )
    return Expected(
        source="made by this run",
        clips_per_s=sampling_rate(
            network,
            gpu,
            rows=rows,
            num_frames=_FRAMES,
            num_tokens=_TOKENS,
            evaluations=text_evaluations(model.sampling),
            null_evaluations=null_evaluations(model.sampling),
            precision=precision,
        ),
        start_s=0.0,
        memory_gib=(memory.total - memory.context) / GIB,
        usd_per_hour=usd_per_hour(cards, catalogue, {}),
    )


def words_expected(expected: Expected) -> str:
    """One line for the start."""
    parts = [f"{expected.clips_per_s:.2f} clips of 5 s a second and sampler, when it is full"]
    if expected.memory_gib is not None:
        parts.append(f"{expected.memory_gib:.1f} GiB a sampler")
    if expected.usd_per_hour is not None:
        parts.append(f"{expected.usd_per_hour:.2f} USD an hour")
    return f"planned ({expected.source}): " + ", ".join(parts)


def served_so_far(url: str) -> tuple[int, float]:
    """Clips finished and device seconds spent, as the endpoint's HTTP process counts them."""
    try:
        answer = httpx.get(f"{url}/metrics", timeout=5.0)
        return parse_counters(answer.text)
    except (httpx.HTTPError, ValueError):
        return 0, 0.0


def parse_counters(text: str) -> tuple[int, float]:
    """The two counters in Prometheus' text form, summed over pools and keys."""
    found: dict[str, float] = {"clips": 0.0, "gpu_seconds": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for name in found:
                if sample.name.endswith(f"{PREFIX}{name}_total"):
                    found[name] += sample.value
    return int(found["clips"]), found["gpu_seconds"]


def words_served(expected: Expected, clips: int, device_s: float, uptime_s: float) -> str:
    """One line for the end: what was served, planned and actual, and what the time up cost."""
    line = f"{clips} clips served in {device_s:.1f} s of samplers' time"
    if clips:
        line += f" ({clips / expected.clips_per_s:.1f} s planned)"
    if expected.usd_per_hour is not None:
        line += f", {expected.usd_per_hour * uptime_s / 3600:.2f} USD for the time up"
    return line


def _model(served: ServedModel) -> ModelConfig:
    return read_model(model_folder(served.model)).config
