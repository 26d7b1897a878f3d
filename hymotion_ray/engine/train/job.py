"""A training job from its config to its report: check, encode captions, train, close."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.cards import cards
from hymotion_ray.engine.cluster import ClusterInfo, connect
from hymotion_ray.engine.doctor.at_start import warn_of_nodes
from hymotion_ray.engine.lease import Lease
from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.plan_check import require_cluster
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.train.checkpoints import all_checkpoints, fault_in, newest, step_of
from hymotion_ray.engine.train.encode import (
    StoreStage,
    encode_captions,
    encoder_name,
    run_here,
    run_on_cluster,
)
from hymotion_ray.engine.train.events import Teller, read_events
from hymotion_ray.engine.train.expected import expected_training
from hymotion_ray.engine.train.fatal import clear_fatal
from hymotion_ray.engine.train.folder import RunFolder, check_run_folder, open_run
from hymotion_ray.engine.train.metrics_file import METRICS_FILE, read_metrics
from hymotion_ray.engine.train.origin import Origin, find_origin
from hymotion_ray.engine.train.rank_run import RankJob
from hymotion_ray.engine.train.saver import read_best
from hymotion_ray.engine.train.trainer import fit, gpus_per_worker
from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.models.locate import BUILT_IN
from hymotion_ray.formats.shards import Dataset, open_dataset
from hymotion_ray.planning.carried import Expected, PlanFile, words_beside
from hymotion_ray.planning.memory import GIB

TEXT_FOLDER = "text"


@dataclass
class TrainReport:
    """How a training job ended."""

    out: str
    step: int = 0
    checkpoint: str = ""
    """Folder of the newest checkpoint."""
    best: str = ""
    """Name of the best one."""
    loss: float | None = None
    val_loss: float | None = None
    seconds: float = 0.0
    restarts: int = 0
    """Times that the workers were started again."""
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    planned: dict[str, Any] | None = None
    """Predicted beside actual time, memory and cost (`planning.carried`)."""

    @property
    def exit_code(self) -> int:
        """0 done, 130 interrupted."""
        return 130 if self.interrupted else 0

    def to_mapping(self) -> dict[str, Any]:
        """The report as one JSON document."""
        return {**dataclasses.asdict(self), "exit_code": self.exit_code}

    def words(self) -> str:
        """The report for people."""
        if self.interrupted:
            return f"interrupted at step {self.step}; the same command goes on from there"
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        line = f"trained to step {self.step} in {self.seconds:.0f} s{loss}: {self.checkpoint}"
        return line if self.planned is None else f"{words_beside(self.planned)}\n{line}"


def run_training(
    config: TrainConfig, say: Callable[[str], None], plan: PlanFile | None = None
) -> TrainReport:
    """Train what `config` asks for, or go on with it. `say` takes lines for the user.

    `plan` is the one whose settings are in `config`; without, the run makes its own expectations.
    Raises the errors of `hymotion_ray.errors`; Ctrl-C ends the job early, at its last checkpoint.
    """
    out = Path(config.out)
    report = TrainReport(out=config.out)
    check_run_folder(out)
    dataset = open_dataset(config.data)
    origin = find_origin(config, dataset)
    encoder = encoder_name(origin, config)
    if plan is not None:
        plan.require_model(origin.base.config.network)
    began = time.monotonic()
    begun = _Begun()
    try:
        with Lease(open_store(config.out), say):
            _train(config, dataset, origin, encoder, begun, say, plan)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = round(time.monotonic() - began, 1)
    report.restarts = begun.restarts
    _close(out, report, say)
    if begun.expected is not None and report.step > begun.step:
        report.planned = begun.expected.beside(
            clips=(report.step - begun.step) * begun.global_batch,
            seconds=report.seconds,
            memory_bytes=_peak_bytes(out, begun.step),
        )
    return report


@dataclass
class _Begun:
    """Where a run began, and what was expected of it."""

    step: int = 0
    global_batch: int = 0
    expected: Expected | None = None
    restarts: int = 0


def describe(config: TrainConfig) -> dict[str, Any]:
    """What a job would do, without loading weights or writing anything."""
    check_run_folder(Path(config.out))
    dataset = open_dataset(config.data)
    origin = find_origin(config, dataset)
    folder = newest(Path(config.out), lambda line: None)
    model = origin.base.config
    return {
        "config": to_mapping(config),
        "model": to_mapping(model),
        "starts_from": f"step {step_of(folder)}" if folder else (config.init or "new weights"),
        "text_encoder": encoder_name(origin, config),
        "clips": {split: dataset.num_clips(split) for split in ("train", "val", "test")},
        "clips_per_step": config.global_batch or config.micro_batch * config.workers.max_workers,
        "stages": ["encode captions", "train", "checkpoints"],
        "exit_code": 0,
    }


def with_whole_paths(config: TrainConfig) -> TrainConfig:
    """`config` with every local path from the root on: workers stand in folders of their own."""
    return dataclasses.replace(
        config,
        data=_whole_path(config.data),
        out=str(Path(config.out).resolve()),
        init=_whole_init(config.init),
        llm_path=config.llm_path and _whole_path(config.llm_path),
        clip_path=config.clip_path and _whole_path(config.clip_path),
    )


def _whole_init(init: str | None) -> str | None:
    return init if init is None or init in BUILT_IN else _whole_path(init)


def _whole_path(place: str) -> str:
    """A path that is here, from the root on; URLs and names of models elsewhere as they are."""
    return str(Path(place).resolve()) if "://" not in place and Path(place).exists() else place


def _train(
    config: TrainConfig,
    dataset: Dataset,
    origin: Origin,
    encoder: str,
    begun: _Begun,
    say: Callable[[str], None],
    plan: PlanFile | None,
) -> None:
    out = Path(config.out)
    clear_fatal(out)
    folder = open_run(config, origin, dataset, encoder, config.workers.max_workers)
    if _is_done(config, out):
        say(f"{out} has reached step {config.max_steps} already; raise --max-steps to go on")
        return
    config = with_whole_paths(dataclasses.replace(config, global_batch=folder.global_batch))
    if config.global_batch < config.workers.min_workers:
        raise ConfigError(
            f"global_batch is {config.global_batch} clips and there are"
            f" {config.workers.min_workers} workers; allowed: at least one clip for each"
        )
    with connect(config.address) as cluster:
        warn_of_nodes(cluster, say)
        begun.step, begun.global_batch = _step(out), folder.global_batch
        begun.expected = _expected(config, origin, cluster, plan)
        store = str(Path(config.feature_store or out / TEXT_FOLDER).resolve())
        _encode(config, dataset, origin, encoder, store, cluster, say)
        with Teller(out, say):
            starts = _num_starts(out)
            try:
                fit(_rank_job(config, folder, encoder, store), cluster, say)
            finally:
                begun.restarts = max(0, _num_starts(out) - starts - 1)


def _expected(
    config: TrainConfig, origin: Origin, cluster: ClusterInfo, plan: PlanFile | None
) -> Expected | None:
    """What is expected of the run; raises `ClusterError` where the plan's cards are missing."""
    uses_gpus = gpus_per_worker(config, cluster) > 0
    found = cards(living_nodes()) if uses_gpus else []
    if plan is None:
        network = origin.base.config.network
        return expected_training(config, network, cluster, found, uses_gpus=uses_gpus)
    require_cluster(plan, cluster, found)
    return plan.expected


def _step(out: Path) -> int:
    """The step of the newest checkpoint."""
    folder = newest(out, lambda line: None)
    return 0 if folder is None else step_of(folder)


def _peak_bytes(out: Path, first_step: int) -> int:
    """Of the fullest worker, as the reports after `first_step` say."""
    rows = read_metrics(out / METRICS_FILE)
    peaks = [r.get("memory_gib") for r in rows if (r["step"] or 0) > first_step]
    return int(GIB * max((peak for peak in peaks if peak), default=0))


def _rank_job(config: TrainConfig, folder: RunFolder, encoder: str, store: str) -> RankJob:
    return RankJob(
        config=config,
        schedule_steps=folder.schedule_steps,
        encoder=encoder,
        feature_store=store,
    )


def _encode(
    config: TrainConfig,
    dataset: Dataset,
    origin: Origin,
    encoder: str,
    store: str,
    cluster: ClusterInfo,
    say: Callable[[str], None],
) -> None:
    # Without weights: the stage travels to other processes.
    light = Origin(base=dataclasses.replace(origin.base, network={}), has_weights=False)
    stage = StoreStage(
        origin=light,
        placement=config.text,
        llm_path=config.llm_path,
        clip_path=config.clip_path,
        store=store,
        encoder=encoder,
        cpu_threads=config.workers.cpu_threads,
    )
    num_gpus = gpus_per_worker(config, cluster)

    def on_cluster(stage: StoreStage, chunks: Iterator[Chunk]) -> Iterator[pa.Table]:
        return run_on_cluster(stage, chunks, num_gpus=num_gpus, say=say)

    is_small = origin.base.config.text.kind == "static"
    run = run_here if is_small else on_cluster
    encode_captions(stage, dataset, config.input.mirror > 0, run, say)


def _is_done(config: TrainConfig, out: Path) -> bool:
    steps = [f for f in all_checkpoints(out) if step_of(f) >= config.max_steps]
    return any(fault_in(folder) is None for folder in steps)


def _num_starts(out: Path) -> int:
    return sum(e["kind"] == "start" and e["rank"] == 0 for e in read_events(out))


def _close(out: Path, report: TrainReport, say: Callable[[str], None]) -> None:
    folder = newest(out, say)
    if folder is not None:
        report.checkpoint, report.step = str(folder), step_of(folder)
    best = read_best(out)
    report.best = "" if best is None else best[0]
    for row in read_metrics(out / METRICS_FILE):
        report.loss = row.get("loss", report.loss)
        report.val_loss = row.get("val_loss", report.val_loss)
