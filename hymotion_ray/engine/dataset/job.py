"""An ingest from its config to its report: list, then rounds of read, dedupe, shard and commit."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.exceptions

from hymotion_ray.config.ingest import IngestConfig
from hymotion_ray.engine.cluster import ClusterInfo, connect, quiet_data
from hymotion_ray.engine.dataset.attempts import Attempts
from hymotion_ray.engine.dataset.captions import read_captions
from hymotion_ray.engine.dataset.catalogue import Catalogue, ShardPlan
from hymotion_ray.engine.dataset.closing import write_report
from hymotion_ray.engine.dataset.convert import ConvertStage
from hymotion_ray.engine.dataset.folder import folder_settings, require_same, save_config
from hymotion_ray.engine.dataset.gate import GateStage
from hymotion_ray.engine.dataset.listing import FileList, WorkChunk
from hymotion_ray.engine.dataset.manifest import (
    Manifest,
    commit_round,
    new_manifest,
    read_manifest,
    table_batches,
)
from hymotion_ray.engine.dataset.part import (
    delete_scratch,
    done_chunks,
    read_index,
    read_samples,
)
from hymotion_ray.engine.dataset.pipeline import ChunkTask, clip_pipeline, shard_pipeline
from hymotion_ray.engine.dataset.progress import IngestProgress
from hymotion_ray.engine.dataset.read import ReadStage
from hymotion_ray.engine.dataset.reader import CollectionReader, Reader, expand, read_chunk_keys
from hymotion_ray.engine.dataset.report import IngestReport, count_sources
from hymotion_ray.engine.dataset.shard import (
    ShardStage,
    WrittenShard,
    written_names,
    written_shard,
)
from hymotion_ray.engine.doctor.at_start import warn_of_nodes
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.lease import Lease, LeaseCheck
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton

SAMPLE_CHUNKS = 128
"""Chunks of a round, its first ones, that keep rejected motions for the report's pictures. Chunks
come in the order of a hash, so these are a fair sample."""
SAMPLES_A_REASON = 12
SUMMARY_FILE = "summary.json"


def run_ingest(
    config: IngestConfig, say: Callable[[str], None], reader: Reader | None = None
) -> IngestReport:
    """Turn what `config` names into shards. `say` takes lines for the user.

    reader: instead of the one for motion collections. Raises the errors of `hymotion_ray.errors`
    for what stops the job before it starts.
    """
    store = open_store(config.out)
    captions = None
    if reader is None:
        captions = read_captions(config.captions, config.sources, say, store.root)
        reader = CollectionReader(
            captions.index if captions else None, read_chunk_keys(config.chunk_keys)
        )
    skeleton = generic_skeleton()
    settings = folder_settings(config, reader, skeleton)
    require_same(store, settings)
    with (
        Lease(store, say, keeps_scratch=True) as lease,
        tempfile.TemporaryDirectory(prefix="hymotion-ray-") as scratch,
        FileList(Path(scratch) / "files.sqlite") as files,
        Catalogue(Path(scratch) / "clips.sqlite") as catalogue,
    ):
        require_same(store, settings)  # again, now that nobody else may change it
        manifest = read_manifest(store) or new_manifest(skeleton, config.splits)
        _load(store, manifest, files, catalogue)
        taken = []
        for reject in files.add_sources(reader, expand(config.sources), store.root):
            catalogue.add_reject(reject)
            taken.append(reject.file)
        _tell_listed(files, say)
        report = IngestReport(out=config.out, dataset=manifest["counts"])
        if captions:
            report.captions = captions.to_mapping()
        job = Job(
            *(config, store, lease.check, reader, skeleton, settings),
            *(files, catalogue, report, say, taken),
        )
        report.dataset = job.run(manifest)["counts"]
        count_sources(files, catalogue, report)
        if report.dataset["files"] and (report.files_read or _is_stale(store, report)):
            if captions:
                captions.write_rejects(store)
            summary = json.dumps(report.to_mapping(), indent=1, ensure_ascii=False)
            store.write_bytes(SUMMARY_FILE, summary.encode())
    return report


@dataclass
class Job:
    """The part of an ingest that reads and writes, once its list stands."""

    config: IngestConfig
    store: Store
    lease: LeaseCheck
    reader: Reader
    skeleton: Skeleton
    settings: dict[str, Any]
    files: FileList
    catalogue: Catalogue
    report: IngestReport
    say: Callable[[str], None]
    taken: list[str]
    """Keys of files that were rejected for their names, to be recorded with the first round."""

    def run(self, manifest: Manifest) -> Manifest:
        """All rounds, then the report; the manifest at the end."""
        if self.files.counts.new:
            save_config(self.store, self.config, self.settings)
            with connect(self.config.address) as cluster:
                warn_of_nodes(cluster, self.say)
                manifest = self._rounds(cluster, manifest)
        elif self.taken:
            manifest = self._commit(manifest, [], [])
        elif manifest["rounds"]:
            delete_scratch(self.store)  # of a run that was stopped after its last commit
        if manifest["rounds"]:
            self.report.page = write_report(self.store, manifest, self.config)
        return manifest

    def _rounds(self, cluster: ClusterInfo, manifest: Manifest) -> Manifest:
        quiet_data()
        num_readers = self.config.work.num_readers or max(1, int(cluster.num_cpus))
        kind = "this machine" if cluster.started_here else f"{cluster.num_nodes} nodes"
        self.say(f"reading {self.files.counts.new} files on {kind} with {num_readers} readers")
        with IngestProgress(self.files.counts.new) as progress:
            for chunks in self.files.rounds(self.config.work, digest(self.settings)):
                try:
                    self._read(chunks, num_readers, progress)
                    self._catalogue(chunks)
                    written = self._shard(num_readers, progress)
                except ray.exceptions.RayError as error:
                    self.report.stopped = (
                        f"the cluster could not go on: {_root_cause(error)}. What is done is safe;"
                        " run the same command again to go on"
                    )
                    break
                manifest = self._commit(manifest, chunks, written)
        self.report.seconds, self.report.clips_per_s = progress.seconds, progress.clips_per_s
        return manifest

    def _read(
        self, chunks: Sequence[WorkChunk], num_readers: int, progress: IngestProgress
    ) -> None:
        """Read, convert and judge the chunks that are not done, into the scratch folder."""
        done = done_chunks(self.store)
        left = [(i, chunk) for i, chunk in enumerate(chunks) if chunk.key not in done]
        progress.passed_by(sum(len(c.files) for c in chunks) - sum(len(c.files) for _, c in left))
        if not left:
            return
        make_attempts: Any = ray.remote(Attempts)
        attempts = make_attempts.options(num_cpus=0).remote(self.config.work.reader_tries)
        task = ChunkTask(
            ReadStage(self.reader, self.config.work.clip_timeout_s),
            ConvertStage(self.skeleton, self.config.licence),
            GateStage(self.config.gates),
            self.config.out,
            attempts,
        )
        marked = ((chunk, i < SAMPLE_CHUNKS) for i, chunk in left)
        for row in _rows(clip_pipeline(marked, task, num_readers)):
            progress.update(row["num_files"], row["num_accepted"], row["num_rejected"])
        ray.kill(attempts)

    def _catalogue(self, chunks: Sequence[WorkChunk]) -> None:
        for chunk in chunks:
            self.catalogue.add_chunk(chunk.key, read_index(self.store, chunk.key))
        self.catalogue.drop_duplicates()

    def _shard(self, num_readers: int, progress: IngestProgress) -> list[WrittenShard]:
        """Write the round's shards; those that an earlier, stopped run wrote are kept."""
        written: list[WrittenShard] = []
        left: list[ShardPlan] = []
        for plan in self.catalogue.assign(self.config.splits, self.config.shards):
            done = written_shard(self.store, plan.name)
            if done is None:
                left.append(plan)
            else:
                written.append(done)
        if left:
            stage = ShardStage(self.config.out, self.config.shards)
            for row in _rows(shard_pipeline(left, stage, num_readers)):
                written.append(WrittenShard.from_json(row["written"]))
                progress.shard(written[-1].info.num_bytes)
        return written

    def _commit(
        self, manifest: Manifest, chunks: Sequence[WorkChunk], written: Sequence[WrittenShard]
    ) -> Manifest:
        """Make the round part of the dataset, and clear its scratch."""
        self.lease.require()
        keys = [file.key for chunk in chunks for file in chunk.files]
        self.report.files_read += len(keys)
        keys, self.taken = sorted([*keys, *self.taken]), []
        rows = ((key, *self.files.path_and_size(key)) for key in keys)
        manifest = commit_round(
            self.store, manifest, self.catalogue, rows, written, self._samples(chunks)
        )
        self.catalogue.settle()
        known = {shard["name"] for shard in manifest["shards"]}
        for name in written_names(self.store):
            if name not in known:  # of a run that was stopped, and whose sources changed since
                self.store.remove(name)
        delete_scratch(self.store)
        return manifest

    def _samples(self, chunks: Sequence[WorkChunk]) -> pa.Table | None:
        """A few rejected motions a reason, of the round's first chunks."""
        kept: list[pa.Table] = []
        count: Counter[str] = Counter()
        for chunk in chunks[:SAMPLE_CHUNKS]:
            table = read_samples(self.store, chunk.key)
            for i in range(table.num_rows if table is not None else 0):
                assert table is not None
                reason = table["split_group"][i].as_py()
                count[reason] += 1
                if count[reason] <= SAMPLES_A_REASON:
                    kept.append(table.slice(i, 1))
        return pa.concat_tables(kept).combine_chunks() if kept else None


def _is_stale(store: Store, report: IngestReport) -> bool:
    """Whether summary.json is missing, or of the dataset as it was before."""
    if not store.exists(SUMMARY_FILE):
        return True
    saved: dict[str, Any] = json.loads(store.read_bytes(SUMMARY_FILE))
    return saved["dataset"] != report.dataset


def _load(store: Store, manifest: Manifest, files: FileList, catalogue: Catalogue) -> None:
    """Tell the lists what the dataset has, a batch of rows at a time."""
    for batch in table_batches(store, manifest, "files", ["key", "size", "path"]):
        files.add_known((r["key"], r["size"], r["path"]) for r in batch.to_pylist())
    columns = ["clip_id", "file", "split_group", "num_frames", "likeness", "mirrored"]
    for batch in table_batches(store, manifest, "clips", columns):
        catalogue.add_earlier_clips(batch.to_pylist())
    for batch in table_batches(store, manifest, "rejects", ["file", "name", "code", "is_motion"]):
        catalogue.add_earlier_rejects(batch.to_pylist())


def _tell_listed(files: FileList, say: Callable[[str], None]) -> None:
    counts = files.counts
    kinds = ", ".join(f"{kind} {count}" for kind, count in counts.kinds.most_common(8))
    say(f"{counts.files} files: {counts.new} new, {counts.done} read before ({kinds})")
    if counts.moved:
        say(f"{counts.moved} files lie elsewhere than when they were read; taken as the same ones")
    if counts.twice:
        say(f"{counts.twice} files are named by two sources; each is read once")


def _rows(dataset: ray.data.Dataset) -> Iterator[dict[str, Any]]:
    table: Any
    for table in dataset.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
        yield from table.to_pylist()


def _root_cause(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[-1] if text else ''}"
