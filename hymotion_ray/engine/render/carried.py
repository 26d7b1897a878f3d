"""The plan that a render job carries out: a file's, a card preset's, or one that the job makes.

Knows configs, cards and counts. The job's own plan is reckoned from where its processes really go.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from hymotion_ray.config.fields import override
from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.plan_check import start_seconds, usd_per_hour
from hymotion_ray.engine.render.model_info import ModelInfo
from hymotion_ray.engine.render.placement import Placement
from hymotion_ray.engine.render.preflight import sampler_bytes
from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.prompts import PromptRow
from hymotion_ray.planning.carried import Expected, PlanFile, read_plan
from hymotion_ray.planning.catalogue import Gpu, load_catalogue
from hymotion_ray.planning.evaluations import null_evaluations, text_evaluations
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB, Precision, sampling_memory
from hymotion_ray.planning.placement import sampling_precision
from hymotion_ray.planning.presets import CardPreset, card_preset, parse_preset
from hymotion_ray.planning.speed import clip_flops, encoding_rate, sampling_seconds
from hymotion_ray.planning.split_plan import share_of

Cells = Counter[GridCell]
Row = TypeVar("Row")


def carried_out(
    config: RenderConfig, model: ModelInfo
) -> tuple[RenderConfig, PlanFile | None, CardPreset | None]:
    """The config with what it leaves open as its plan or preset has it, and these.

    `ConfigError` for a plan of another model, and for what the preset's card cannot hold.
    """
    plan = preset = None
    settings: dict[str, object] = {}
    if config.plan is not None and config.preset is not None:
        raise ConfigError("plan and preset are both given; allowed: one of them")
    if config.plan is not None:
        plan = read_plan(config.plan, "render")
        plan.require_model(model.config.network)
        settings = dict(plan.settings)
    if config.preset is not None:
        preset = preset_of(config, model.config.network, model.config.text.kind != "static")
        settings = dict(preset.settings())
    open_ones = [
        f"{name}={json.dumps(value)}"
        for name, value in settings.items()
        if _is_open(config, name) and not (name == "resources.rows" and config.exact is not None)
    ]
    return override(config, open_ones), plan, preset


def preset_of(config: RenderConfig, network: NetworkConfig, has_encoder: bool) -> CardPreset:
    """The preset that the config names, for its precision; `ConfigError` for what cannot fit."""
    assert config.preset is not None
    preset = card_preset(
        parse_preset(config.preset),
        network,
        has_encoder=has_encoder,
        precision="float32" if config.precision == "float32" else "bfloat16",
    )
    if config.default_frames > preset.max_frames:
        raise ConfigError(
            f"duration is {config.duration} and {preset.name} holds clips of at most "
            f"{preset.max_frames / 30:g} s; allowed: shorter clips, or a larger card's preset"
        )
    asked = config.exact_cell.rows if config.exact_cell else config.resources.rows
    if asked is not None and asked > preset.rows:
        raise ConfigError(
            f"rows is {asked} and {preset.name} holds at most {preset.rows} clips at once; "
            "allowed: fewer rows (more seeds run in further passes), or a larger card's preset"
        )
    return preset


def warned(
    rows: Iterable[Row], preset: CardPreset | None, say: Callable[[str], None]
) -> Iterator[Row]:
    """`rows` as they are; says at their end how many prompts are longer than the preset expects."""
    num_long = 0
    for row in rows:
        if preset is not None and isinstance(row, PromptRow):
            num_long += len(row.text.split()) > preset.warn_words
        yield row
    if preset is not None and num_long:
        say(
            f"{num_long} prompts have more than {preset.warn_words} words; {preset.name} reckons "
            f"with {preset.max_tokens} text tokens at most, and longer ones take more memory"
        )


def expected_of(
    config: RenderConfig,
    model: ModelInfo,
    cluster: ClusterInfo,
    cards: Sequence[Card],
    placement: Placement,
    grid: Grid,
    histogram: Sequence[tuple[int, int, int]],
    num_samplers: int,
) -> Expected | None:
    """What the job expects of itself; None where a card is of no kind that the catalogue knows."""
    cells: Cells = Counter()
    for num_frames, num_tokens, number in histogram:
        cells[grid.cell(num_frames, num_tokens, model.config.train_frames)] += number
    network = model.config.network
    work = _Work(
        network=network,
        cells=cells,
        seeds=max(1, config.best_of * (len(config.seed_list) or config.num_seeds)),
        evaluations=text_evaluations(model.sampling),
        null_evaluations=null_evaluations(model.sampling),
    )
    num_processes = num_samplers * (config.split.size if config.split else 1)
    start_s = start_seconds(model.network_weights + model.encoder_weights)
    if not placement.uses_gpus:
        cores = max(1.0, min(num_processes * config.resources.cpu_threads, cluster.num_cpus))
        return Expected(
            source="made by this run, for CPUs",
            clips_per_s=cells.total() / work.cpu_seconds(cores),
            start_s=start_s,
            memory_gib=sampler_bytes(model.network_weights) / GIB,
        )
    catalogue = load_catalogue()
    kinds = [catalogue.kind_of(card.name, card.num_bytes) for card in cards]
    if not kinds or None in kinds:
        return None
    own = sum(placement.encoder_gpus == 1.0 for _ in range(config.resources.num_encoders))
    gpus = [kind for kind in kinds if kind is not None][own:] or [k for k in kinds if k is not None]
    gpus = gpus[: max(1, num_processes)]
    rate = sum(cells.total() / work.gpu_seconds(gpu, config) for gpu in gpus)
    if placement.encoder_is_large and placement.encoder_gpus:
        encoded = work.seeds * max(encoding_rate(kind) for kind in kinds if kind is not None)
        if placement.encoder_gpus < 1.0:
            # Texts take their time from the sampler on the same card.
            rate /= 1 + rate / len(gpus) / encoded
        rate = min(rate, encoded * config.resources.num_encoders)
    return Expected(
        source="made by this run" + (", what a split sends left out" if config.split else ""),
        clips_per_s=rate,
        start_s=start_s,
        memory_gib=max(work.gpu_bytes(gpu, config) for gpu in gpus) / GIB,
        usd_per_hour=usd_per_hour(cards, catalogue, config.resources.price_of),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What is to be computed."""

    network: NetworkConfig
    cells: Cells
    seeds: int
    evaluations: int
    null_evaluations: int | None

    def cpu_seconds(self, cores: float) -> float:
        """On so many cores, each clip with its share of its prompt's text."""
        flops = sum(
            number
            * clip_flops(
                self.network,
                num_frames=cell.frames,
                num_tokens=cell.tokens,
                seeds=min(self.seeds, cell.rows),
                evaluations=self.evaluations,
                null_evaluations=self.null_evaluations,
            )
            for cell, number in self.cells.items()
        )
        return flops / (cores * fitted().speed.cpu_core_flops)

    def gpu_seconds(self, gpu: Gpu, config: RenderConfig) -> float:
        """On one card, in full batches."""
        return sum(
            -(-number // cell.rows)
            * sampling_seconds(
                self.network,
                gpu,
                rows=cell.rows,
                num_frames=cell.frames,
                num_tokens=cell.tokens,
                seeds=min(self.seeds, cell.rows),
                evaluations=self.evaluations,
                null_evaluations=self.null_evaluations,
                precision=_precision(gpu, config),
                float8=config.precision == "float8",
            )
            for cell, number in self.cells.items()
        )

    def gpu_bytes(self, gpu: Gpu, config: RenderConfig) -> int:
        """Of a sampler at its fullest, without CUDA's context."""
        found = [
            sampling_memory(
                self.network,
                rows=cell.rows,
                num_frames=cell.frames,
                num_tokens=cell.tokens,
                seeds=min(self.seeds, cell.rows),
                num_steps=self.evaluations,
                guidance=self.null_evaluations != 0,
                precision=_precision(gpu, config),
                card_bytes=gpu.memory_bytes,
            )
            for cell in self.cells
        ]
        if config.split is not None:
            found = [share_of(memory, config.split) for memory in found]
        return max(memory.total - memory.context for memory in found)


def _precision(gpu: Gpu, config: RenderConfig) -> Precision:
    # What surrounds float8's products is in the format of auto.
    if config.precision == "auto" or config.precision == "float8":
        return sampling_precision(gpu)
    return config.precision


def _is_open(config: RenderConfig, path: str) -> bool:
    """Whether the config has a setting at its default."""
    section: object = config
    *sections, name = path.split(".")
    for part in sections:
        section = getattr(section, part)
    (field,) = (f for f in dataclasses.fields(section) if f.name == name)  # type: ignore[arg-type]
    return bool(getattr(section, name) == field.default)
