"""A render job from its config to its summary: plan, run, close."""

from __future__ import annotations

import dataclasses
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hymotion_ray.config.grid import Grid
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.cards import Card, cards
from hymotion_ray.engine.cluster import ClusterInfo, connect
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.doctor.at_start import warn_of_nodes
from hymotion_ray.engine.lease import Lease, LeaseCheck
from hymotion_ray.engine.manifest import remove_replaced
from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.plan_check import require_cluster
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.render.carried import carried_out, expected_of, warned
from hymotion_ray.engine.render.closing import Merger, close_folder
from hymotion_ray.engine.render.compute import Computation
from hymotion_ray.engine.render.extend import Extension
from hymotion_ray.engine.render.folder import (
    Folder,
    existing_folder,
    folder_identity,
    require_same,
    save_folder,
)
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.pinned import PinnedClass
from hymotion_ray.engine.render.pipeline import extend_step, render_steps
from hymotion_ray.engine.render.placement import Placement, place, wants_gpus
from hymotion_ray.engine.render.plan import fit_grid, make_plan, prompt_rows, read_done
from hymotion_ray.engine.render.preflight import require_memory, sampler_bytes
from hymotion_ray.engine.render.report import JobReport
from hymotion_ray.engine.render.rewrite import RewriteStage
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.render.shares import Shares, divide
from hymotion_ray.engine.suspects import Suspects
from hymotion_ray.engine.worklist import Worklist
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.motions import check_formats
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.planning.carried import Expected, PlanFile
from hymotion_ray.planning.presets import CardPreset

HASH_FOLDERS_ABOVE = 10_000
"""Clips in a folder above which files are spread over 256 sub-folders."""

BuildSteps = Callable[[StageSettings, Decoder, LeaseCheck, Placement], list[Step]]


def run_job(
    config: RenderConfig, say: Callable[[str], None], build_steps: BuildSteps = render_steps
) -> JobReport:
    """Render what `config` asks for. `say` takes lines for the user.

    `build_steps` makes the pipeline's steps; benchmarks put stand-ins there. Raises the errors of
    `hymotion_ray.errors` for what stops the job before it starts; Ctrl-C ends it early.
    """
    store = open_store(config.out)
    check_formats(config.all_formats)
    report = JobReport(out=config.out)
    try:
        existing_folder(store)  # refused before anything is written there
        model = ModelInfo.read(config)
        config, plan, preset = carried_out(config, model)
        with (
            Lease(store, say) as lease,
            tempfile.TemporaryDirectory(prefix="hymotion-ray-") as scratch,
            Worklist(Path(scratch) / "work.sqlite", config.best_of) as worklist,
        ):
            Job(
                config, store, model, lease, worklist, Path(scratch), build_steps, report, say,
                plan, preset,
            ).run()  # fmt: skip
    except KeyboardInterrupt:
        report.interrupted = True
    except sqlite3.OperationalError as error:
        raise OutputError(
            f"the list of work in {tempfile.gettempdir()} cannot be kept ({error}); it takes about"
            " 200 bytes a clip: free space there, or set TMPDIR to a larger disk"
        ) from error
    return report


@dataclass
class Job:
    """One run of a job, while the folder is this driver's."""

    config: RenderConfig
    store: Store
    model: ModelInfo
    lease: Lease
    worklist: Worklist
    scratch: Path
    build_steps: BuildSteps
    report: JobReport
    say: Callable[[str], None]
    plan: PlanFile | None = None
    """The plan that was given."""
    preset: CardPreset | None = None
    """The card whose limits are kept."""

    def __post_init__(self) -> None:
        self._cards: list[Card] = []
        self._num_stale = 0
        self._shares: Shares | None = None
        self._suspects = Suspects(self.store)
        self._merger = Merger(self.store)

    def run(self) -> None:
        """Plan, compute what is new, write what is missing, close the folder."""
        earlier = existing_folder(self.store)
        settings = self.model.folder_settings(self.config)
        if earlier is not None:
            require_same(self.store, earlier, settings)
        rejects = self._plan(folder_identity(settings))
        if self.report.counts.prompts == 0:
            return
        try:
            self._compute(earlier, rejects)
        except KeyboardInterrupt:
            self.store.remove_leftovers(older_than_s=0)
            raise
        finally:
            self._merger.close()
        self._close()

    def _plan(self, identity: str) -> Path:
        """Put on the list what is to be done; a file with the lines of rejects.jsonl."""
        remove_replaced(self.store)
        self._suspects.add(self.lease.left_running)
        self._num_stale = read_done(self.store, self.worklist)
        rewrite = RewriteStage(self.config.rewrite, self.store, self.worklist)
        most = min(self.model.config.train_frames, self.preset.max_frames if self.preset else 10**9)
        rows = warned(prompt_rows(self.config, most, self.say), self.preset, self.say)
        path = self.scratch / "rejects.jsonl"
        with path.open("w", encoding="utf-8") as sink:
            self.report.counts = make_plan(
                rows, self.config, self.model, identity, self.worklist, rewrite, sink
            )
        self.worklist.seal(self._suspects.identities)
        for reject in self.report.counts.first_rejects:
            self.say(f"rejected {reject.file}:{reject.line}: {reject.message}")
        faults.reach("planned")
        return path

    def _compute(self, earlier: Folder | None, rejects: Path) -> None:
        if not self.worklist.num_work and not self.worklist.num_exports:
            self._begin(earlier, False, rejects)
            return
        with connect(self.config.address) as cluster:
            warn_of_nodes(cluster, self.say)
            has_gpus = wants_gpus(self.config.resources, cluster)
            if has_gpus:
                self._cards = cards(living_nodes())
            if self.plan is not None:
                require_cluster(self.plan, cluster, self._cards)
            if has_gpus and self.worklist.num_work:
                self._shares = self._divided()
            folder, stages = self._begin(earlier, has_gpus, rejects)
            if self.worklist.num_work:
                self._render(cluster, folder, stages)
            if self.worklist.num_exports and not self.report.stopped:
                self._merger.close()  # parts must not be merged away while they are read
                self._export(cluster, stages)

    def _begin(
        self, earlier: Folder | None, has_gpus: bool, rejects: Path
    ) -> tuple[Folder, StageSettings]:
        if earlier is None:
            cell = self.config.exact_cell
            kind = "cuda" if has_gpus else "cpu"
            grid = Grid.of_one(cell, kind) if cell else self._fitted_grid(has_gpus)
            folder = Folder(settings=self.model.folder_settings(self.config), grid=grid)
        else:
            folder = earlier
        save_folder(self.store, folder, self.config)
        self.store.write_file("rejects.jsonl", rejects)
        hashed = self.report.counts.asked > HASH_FOLDERS_ABOVE
        stages = self.model.stage_settings(
            self.config, folder.grid, out=self.store.root, hashed_folders=hashed
        )
        return folder, stages

    def _divided(self) -> Shares | None:
        """How encoder and samplers divide the GPUs; None where that is given or unknown."""
        resources, model = self.config.resources, self.model.config
        given = resources.encoder_gpus is not None or resources.sampler_gpus is not None
        sizes = [card.num_bytes for card in self._cards]
        if given or model.text.kind == "static" or not sizes:
            return None
        weights = self.model.encoder_weights
        shares = divide(model.network, self.config.text, self.config.precision, sizes, weights)
        self.say(shares.words)
        return shares

    def _fitted_grid(self, has_gpus: bool) -> Grid:
        most = self._shares.rows if self._shares else None
        wanted = default_grid(self.config.resources, has_gpus, most)
        grid = fit_grid(wanted, self.worklist.histogram(), self.model.config.train_frames)
        if self.config.split is None:
            return grid
        return dataclasses.replace(grid, rows=self.config.split.fitting_rows(grid.rows))

    def _pinned(self, folder: Folder) -> PinnedClass:
        """What the processes of an `--exact` job are held to."""

        def save(made_on: dict[str, str]) -> None:
            save_folder(self.store, dataclasses.replace(folder, made_on=made_on), self.config)

        return PinnedClass(folder.made_on, save)

    def _render(self, cluster: ClusterInfo, folder: Folder, stages: StageSettings) -> None:
        self.say(_cluster_words(cluster, self.worklist.num_work, stages))
        placement = place(
            self.config.resources,
            cluster,
            living_nodes(),
            encoder_is_large=self.model.config.text.kind != "static",
            shares=self._shares,
            sampler_bytes=sampler_bytes(self.model.network_weights),
            group_size=self.config.split.size if self.config.split else 1,
        )
        require_memory(
            placement,
            living_nodes(),
            encoder_weights=self.model.encoder_weights,
            network_weights=self.model.network_weights,
        )
        self.report.expected = self._expected(cluster, stages.grid, placement)
        steps = self.build_steps(stages, self.model.decoder, self.lease.check, placement)
        dispatcher = Dispatcher(
            steps,
            self.say,
            stall_s=self.config.stall_s,
            on_suspect=lambda piece: self._suspects.add(piece.chunk.column("identity")),
        )
        if self.config.exact is not None:
            pinned = self._pinned(folder)
            dispatcher.on_ready = lambda step, hello: pinned.check(step, hello.kind, hello.build)
        computation = Computation(
            self.config, self.store, dispatcher, self.lease, self._merger, self.report, self.say
        )
        computation.run(
            self.worklist.chunks(stages.grid, self.model.config.train_frames),
            self.worklist.suspects(),
        )

    def _expected(self, cluster: ClusterInfo, grid: Grid, placement: Placement) -> Expected | None:
        if self.plan is not None:
            return self.plan.expected
        if self.config.offload != "none":
            return None  # what copying the weights takes is not reckoned
        num_samplers = placement.samplers(living_nodes())[0]
        return expected_of(
            self.config, self.model, cluster, self._cards, placement, grid,
            self.worklist.histogram(), num_samplers,
        )  # fmt: skip

    def _export(self, cluster: ClusterInfo, stages: StageSettings) -> None:
        """Give finished clips the formats that they lack."""
        self.say(f"writing more formats for {self.worklist.num_exports} finished clips")
        step = extend_step(stages, self.lease.check, self.config.resources, cluster)
        dispatcher = Dispatcher([step], self.say, stall_s=self.config.stall_s)
        computation = Computation(
            self.config, self.store, dispatcher, self.lease, self._merger, self.report, self.say
        )
        computation.extend(Extension(self.store, self.worklist), self.worklist.num_exports)

    def _close(self) -> None:
        if self.lease.is_takeover or any(self.report.mishaps.values()):
            self.store.remove_leftovers(older_than_s=0)  # nobody writes any more
        expected = None if self.report.stopped or self._num_stale else self.worklist.num_expected
        try:
            close_folder(self.store, self.config, self.report, self.scratch, expected)
        except OutputError as error:
            if not self.report.stopped:
                raise
            self.say(f"the folder could not be closed: {error}")


def _cluster_words(cluster: ClusterInfo, num_work: int, stages: StageSettings) -> str:
    kind = "this machine" if cluster.started_here else f"a cluster of {cluster.num_nodes} nodes"
    return (
        f"rendering {num_work} clips on {kind}: {cluster.num_cpus:g} CPUs,"
        f" {cluster.num_gpus:g} GPUs, up to {stages.grid.rows} clips at once in a sampler"
    )
