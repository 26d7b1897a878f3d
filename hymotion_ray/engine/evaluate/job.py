"""An evaluation from its config to its report: find, render, measure, compare, write."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from hymotion_ray.config.evaluate import EvaluateConfig
from hymotion_ray.engine.cluster import connect
from hymotion_ray.engine.evaluate.deal import measure_here, measure_over_ray
from hymotion_ray.engine.evaluate.embedder import load_embedder
from hymotion_ray.engine.evaluate.judgement import (
    TestPrompt,
    add_nearest,
    default_prompts,
    judge,
    read_test_prompts,
)
from hymotion_ray.engine.evaluate.model import model_of, render_model
from hymotion_ray.engine.evaluate.page import report_page
from hymotion_ray.engine.evaluate.report import EvaluateReport
from hymotion_ray.engine.evaluate.sets import embedding_measures, feature_distances
from hymotion_ray.engine.evaluate.source import (
    Source,
    find_source,
    iter_pieces,
    source_mapping,
)
from hymotion_ray.engine.evaluate.tally import Tally
from hymotion_ray.engine.progress import JobProgress
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.motion.metrics_actions import STATISTIC_NAMES
from hymotion_ray.text.static import StaticEncoder

_FEW_PIECES = 4
"""Up to so many pieces are measured here: starting Ray takes longer."""

Say = Callable[[str], None]


def run_evaluate(config: EvaluateConfig, say: Say) -> EvaluateReport:
    """Evaluate what `config` names. `say` takes lines for the user.

    Raises the errors of `hymotion_ray.errors` for what stops the job: a path that holds nothing, an
    embedder that does not work, a model that cannot be rendered.
    """
    start = time.monotonic()
    if config.embedder:
        load_embedder(config.embedder)
    prompts = read_test_prompts(config.prompts or default_prompts())
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hymotion-ray-")))
        job = _Job(config, scratch, prompts, stack, say)
        report = job.run()
        report.seconds = time.monotonic() - start
        if config.out:
            report.out = open_store(config.out).root
            job.write(report)
    return report


@dataclass
class _Job:
    """One evaluation while its scratch folder stands."""

    config: EvaluateConfig
    scratch: Path
    prompts: list[TestPrompt]
    stack: ExitStack
    say: Say

    def run(self) -> EvaluateReport:
        model = model_of(self.config.path, self.say)
        rendered, num_failed = None, 0
        if model is None:
            source = find_source(self.config.path, self.config.split)
        else:
            out = f"{self.config.out or self.scratch}/render"
            rendered, num_failed = render_model(model, self.config, out, self.say)
            source = find_source(out)
        reference = None
        if self.config.reference:
            reference = find_source(self.config.reference, self.config.split)
        self.tally = self._measure(source, "clips", self.config.limit)
        if not self.tally.num_clips and not self.tally.num_rejected:
            raise InputError(
                f"{source.url} holds no motions to measure; give a folder of npz, bvh or glb files,"
                " a render's output, a dataset, or a model"
            )
        report = EvaluateReport(
            source={**source_mapping(source), **({"path": self.config.path} if model else {})},
            num_clips=self.tally.num_clips,
            num_rejected=self.tally.num_rejected,
            rejects=dict(self.tally.rejects),
            first_rejects=[vars(reject) for reject in self.tally.first_rejects],
            metrics=self.tally.summary(),
            model=rendered,
            num_failed=num_failed,
        )
        if self.tally.num_clips:
            self._compare(report, reference)
        return report

    def _compare(self, report: EvaluateReport, reference: Source | None) -> None:
        real = self._measure(reference, "reference", None) if reference else None
        if reference and real and real.num_clips:
            report.reference = {
                **source_mapping(reference),
                "num_clips": real.num_clips,
                "num_rejected": real.num_rejected,
                "metrics": real.summary(),
            }
            report.distances = feature_distances(self.tally, real)
        if self.config.embedder:
            embedder = load_embedder(self.config.embedder)
            report.embedding = embedding_measures(self.tally, real, embedder)
        columns = ["text", *(f"does_{name}" for name in STATISTIC_NAMES)]
        report.judged = judge(self.prompts, self.tally.batches(columns))
        if reference and real and any(own.num_clips for own in report.judged):
            encoder = StaticEncoder(model_folder("tiny") / "text")
            add_nearest(report.judged, iter_pieces(reference), encoder)

    def _measure(self, source: Source, name: str, limit: int | None) -> Tally:
        """All clips of a source, tallied; over Ray when there are many."""
        tally = self.stack.enter_context(Tally(self.scratch / f"{name}.parquet"))
        pieces = iter_pieces(source, limit)
        first = list(islice(pieces, _FEW_PIECES + 1))
        config = self.config
        truth = config.truth if name == "clips" else None
        few = len(first) <= _FEW_PIECES and config.address is None
        with ExitStack() as stack:
            found = chain(first, pieces)
            if config.num_workers == 0 or (few and config.num_workers is None):
                dealt = measure_here(found, config.embedder, truth)
            else:
                cluster = stack.enter_context(connect(config.address))
                workers = config.num_workers or max(1, int(cluster.num_cpus))
                dealt = measure_over_ray(found, config.embedder, truth, workers)
            counted = sum(piece.num_clips for piece in first)
            progress = stack.enter_context(JobProgress(total=counted, title="evaluate", unit=name))
            for piece, measured in dealt:
                tally.add(measured)
                progress.total = max(progress.total, progress.done + piece.num_clips)
                rejected = len(measured.rejects)
                progress.update(measured.rows.num_rows, rejected, "")
        tally.close()
        return tally

    def write(self, report: EvaluateReport) -> None:
        """Put the report, the page, each clip's numbers and the rejects into the out folder."""
        store = open_store(self.config.out or "")
        store.write_file("clips.parquet", self.tally.path)
        store.write_file("rejects.jsonl", self.tally.rejects_path)
        store.write_bytes("report.html", report_page(report, self.tally).encode())
        text = json.dumps(report.to_mapping(), indent=1, ensure_ascii=False)
        store.write_bytes("report.json", text.encode())
