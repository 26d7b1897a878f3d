"""A render job from its config to its summary: plan, run, close."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.cluster import ClusterInfo, connect
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.manifest import merge_parts
from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.progress import JobProgress, duration_words
from hymotion_ray.engine.render.closing import close_folder
from hymotion_ray.engine.render.extend import export_missing
from hymotion_ray.engine.render.folder import (
    Folder,
    existing_folder,
    folder_identity,
    require_same,
    save_folder,
)
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.pipeline import render_steps
from hymotion_ray.engine.render.placement import place, wants_gpus
from hymotion_ray.engine.render.plan import (
    PlanCounts,
    fit_grid,
    make_plan,
    prompt_rows,
    read_done,
)
from hymotion_ray.engine.render.rewrite import RewriteStage
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.worklist import Worklist
from hymotion_ray.errors import ClusterError, OutputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.motions import check_formats

HASH_FOLDERS_ABOVE = 10_000
"""Clips in a folder above which files are spread over 256 sub-folders."""


@dataclass
class JobReport:
    """How a job ended; what summary.json holds."""

    out: str
    counts: PlanCounts
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    by_device: dict[str, int] = field(default_factory=dict)
    page: str | None = None
    stopped: str | None = None
    """Why the job stopped before its end."""

    @property
    def exit_code(self) -> int:
        """0 all done, 1 some failed or were rejected, 2 nothing to start with, 3 stopped."""
        if self.stopped:
            return 3
        if self.counts.prompts == 0:
            return 2 if self.counts.rejected else 0
        return 1 if self.failed or self.counts.rejected else 0

    def words(self) -> str:
        """What the user reads at the end."""
        if self.counts.prompts == 0:
            return (
                f"no prompt can be rendered: {self.counts.rejected} rejected"
                if self.counts.rejected
                else "warning: the input holds no prompts; 0 clips asked, 0 done"
            )
        lines = [
            f"{self.done} clips rendered, {self.counts.done} done before, {self.failed} failed,"
            f" {self.counts.rejected} prompts rejected, in {duration_words(self.seconds)}"
        ]
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join([*lines, self.page or self.out])

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        counts = asdict(self.counts)
        for name in ("first_rejects", "first_keys", "frames"):
            counts.pop(name)
        return {
            "asked": counts.pop("asked"),
            "done": self.done + counts["done"],
            "rendered": self.done,
            "reused": counts.pop("done"),
            "failed": self.failed,
            **counts,
            "seconds": round(self.seconds, 3),
            "clips_per_s": round(self.done / self.seconds, 3) if self.seconds else 0.0,
            "by_device": self.by_device,
            "out": self.out,
            "page": self.page,
            "stopped": self.stopped,
            "exit_code": self.exit_code,
        }


def run_job(config: RenderConfig, say: Callable[[str], None]) -> JobReport:
    """Render what `config` asks for. `say` takes lines for the user.

    Raises the errors of `hymotion_ray.errors` for what stops the job before it starts.
    """
    store = open_store(config.out)
    check_formats(config.all_formats)
    earlier = existing_folder(store)
    model = ModelInfo.read(config)
    settings = model.folder_settings(config)
    if earlier is not None:
        require_same(store, earlier, settings)
    with (
        tempfile.TemporaryDirectory(prefix="hymotion-ray-") as scratch,
        Worklist(Path(scratch) / "work.sqlite") as worklist,
        (Path(scratch) / "rejects.jsonl").open("w+", encoding="utf-8") as rejects,
    ):
        read_done(store, worklist)
        rewrite = RewriteStage(config.rewrite, store, worklist)
        counts = make_plan(
            prompt_rows(config, model.config.train_frames, say),
            config,
            model,
            folder_identity(settings),
            worklist,
            rewrite,
            rejects,
        )
        report = JobReport(out=store.root, counts=counts)
        for reject in counts.first_rejects:
            say(f"rejected {reject.file}:{reject.line}: {reject.message}")
        if counts.prompts == 0:
            return report
        rejects.flush()
        job = Job(config, store, model, worklist, earlier, report, say)
        job.run(Path(rejects.name).read_bytes())
    return report


@dataclass
class Job:
    """The part of a job that computes and writes, once its plan stands."""

    config: RenderConfig
    store: Store
    model: ModelInfo
    worklist: Worklist
    earlier: Folder | None
    report: JobReport
    say: Callable[[str], None]

    def run(self, rejects: bytes) -> None:
        """Compute what is new, write what is missing, close the folder."""
        if self.worklist.num_work:
            with connect(self.config.address) as cluster:
                stages = self._begin(wants_gpus(self.config.resources, cluster), rejects)
                self._render(cluster, stages)
        else:
            stages = self._begin(False, rejects)
        self.report.done += export_missing(self.store, self.worklist, stages.axis)
        merge_parts(self.store)
        close_folder(self.store, self.config, self.report)

    def _begin(self, has_gpus: bool, rejects: bytes) -> StageSettings:
        if self.earlier is None:
            grid = fit_grid(
                default_grid(self.config.resources, has_gpus),
                self.worklist.histogram(),
                self.model.config.train_frames,
            )
            folder = Folder(settings=self.model.folder_settings(self.config), grid=grid)
        else:
            folder = self.earlier
        save_folder(self.store, folder, self.config)
        self.store.write_bytes("rejects.jsonl", rejects)
        hashed = self.report.counts.asked > HASH_FOLDERS_ABOVE
        return self.model.stage_settings(
            self.config, folder.grid, out=self.store.root, hashed_folders=hashed
        )

    def _render(self, cluster: ClusterInfo, stages: StageSettings) -> None:
        self.say(_cluster_words(cluster, self.worklist.num_work, stages))
        encoder_is_large = self.model.config.text.kind != "static"
        placement = place(
            self.config.resources, cluster, living_nodes(), encoder_is_large=encoder_is_large
        )
        steps = render_steps(
            stages, self.model.decoder, placement, encoder_is_large=encoder_is_large
        )
        dispatcher = Dispatcher(steps, self.say, stall_s=self.config.stall_s)
        chunks = self.worklist.chunks(stages.grid, self.model.config.train_frames)
        try:
            with JobProgress(total=self.report.counts.new) as progress:
                self._follow(dispatcher, chunks, progress)
        except (ClusterError, OutputError) as error:
            self.report.stopped = (
                f"{error}. Finished clips are safe; run the same command again to go on"
            )

    def _follow(
        self, dispatcher: Dispatcher, chunks: Iterator[Chunk], progress: JobProgress
    ) -> None:
        budget = self.config.failure_budget(self.report.counts.asked)
        try:
            for receipt in dispatcher.run(chunks):
                assert receipt.finished is not None, "the last step says what it finished"
                (finished,) = receipt.finished.to_pylist()
                progress.update(finished["num_done"], finished["num_failed"], finished["device"])
                if finished["error"] and progress.failed <= 5:
                    self.say(f"failed: {finished['error']}")
                if budget is not None and progress.failed > budget:
                    self.report.stopped = (
                        f"{progress.failed} items failed, more than --max-failures"
                        f" {self.config.max_failures}; see failures.jsonl, mend the cause and run"
                        " the same command again"
                    )
                    break
        finally:
            self.report.done += progress.done
            self.report.failed += progress.failed
            self.report.seconds = progress.seconds
            self.report.by_device = dict(progress.by_device)


def _cluster_words(cluster: ClusterInfo, num_work: int, stages: StageSettings) -> str:
    kind = "this machine" if cluster.started_here else f"a cluster of {cluster.num_nodes} nodes"
    return (
        f"rendering {num_work} clips on {kind}: {cluster.num_cpus:g} CPUs,"
        f" {cluster.num_gpus:g} GPUs, up to {stages.grid.rows} clips at once in a sampler"
    )
