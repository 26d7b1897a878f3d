"""Whole ingests on a real Ray: what the sources hold is in the shards or among the rejects."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from folder_reader import FolderReader, made_clip

from hymotion_ray.cli_ingest import ingest
from hymotion_ray.config.ingest import IngestConfig, ShardConfig, WorkConfig
from hymotion_ray.engine.dataset import job as job_module
from hymotion_ray.engine.dataset.catalogue import Catalogue
from hymotion_ray.engine.dataset.job import run_ingest
from hymotion_ray.engine.dataset.report import IngestReport
from hymotion_ray.engine.lease import Lease
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.shards import ShardClip, check_dataset, iter_shards, open_dataset
from hymotion_ray.formats.sources import to_motion
from hymotion_ray.motion.canonical import canonical_clip
from hymotion_ray.motion.features import encode_features
from hymotion_ray.motion.skeleton import generic_skeleton

pytestmark = pytest.mark.ray

GOOD = range(1, 13)
WORK = WorkConfig(num_readers=2, chunk_files=5, clip_timeout_s=60)
SMALL = ShardConfig(target_mb=0.4, row_group_mb=0.1)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run(out: Path, *sources: Path, work: WorkConfig = WORK, reader=None) -> IngestReport:
    config = IngestConfig(
        sources=tuple(map(str, sources)), out=str(out), work=work, shards=SMALL, report_clips=2
    )
    return run_ingest(config, lambda line: None, reader or FolderReader())


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def table(out: Path, name: str) -> list[dict[str, Any]]:
    return [r for p in sorted((out / name).glob("*.parquet")) for r in pq.read_table(p).to_pylist()]


def take(clip_id: str) -> str:
    """A clip's name without the frames it was cut from."""
    return clip_id.partition("@")[0]


def clips(out: Path) -> dict[str, ShardClip]:
    found = [c for s in ("train", "val", "test") for c in iter_shards(out, s)]
    by_id = {take(c.clip_id): c for c in found}
    assert len(by_id) == len(found), "a clip is in the dataset twice"
    return by_id


@pytest.fixture(scope="module", autouse=True)
def travelling_reader(ray) -> Iterator[None]:
    """Workers cannot import the tests' modules, so the reader travels with its code."""
    import folder_reader

    ray.cloudpickle.register_pickle_by_value(folder_reader)
    yield
    ray.cloudpickle.unregister_pickle_by_value(folder_reader)


@pytest.fixture(scope="module")
def first(ray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, IngestReport]:
    """One ingest of good and bad files: (sources, output, report)."""
    folder = tmp_path_factory.mktemp("ingest")
    source = write(
        folder / "moves",
        {
            **{f"take{k:02d}.clip": str(k) for k in GOOD},
            "copy.clip": "3",
            "mirror.clip": "m4",
            "broken.clip": "raise",
            "refused.clip": "20 part",
            "held.clip": "still nan",
            "notes.txt": "not a motion",
        },
    )
    return source, folder / "out", run(folder / "out", source)


def test_every_clip_is_accepted_or_rejected_for_its_reason(first) -> None:
    _, out, report = first
    assert report.exit_code == 1
    assert (report.accepted, report.rejected, report.skipped) == (14, 5, 1)
    assert report.rejected_by_reason == {
        "damaged": 1,
        "duplicate": 1,
        "not_finite": 1,
        "reader_died": 1,
        "static": 1,
    }
    rejects = {take(r["name"]): r for r in table(out, "rejects")}
    assert rejects["moves/take03.clip#3"]["code"] == "duplicate"
    assert "moves/copy.clip#3" in rejects["moves/take03.clip#3"]["message"]
    assert rejects["moves/broken.clip"]["message"].endswith("ValueError: cannot read this")
    assert rejects["moves/held.clip#still"]["value"] == 1.0
    assert rejects["moves/notes.txt"]["is_motion"] is False
    assert len(rejects) == 6
    by_file = {r["key"]: (r["accepted"], r["rejected"]) for r in table(out, "files")}
    assert by_file["moves/refused.clip"] == (1, 1)
    assert by_file["moves/take03.clip"] == (0, 1)
    assert len(by_file) == report.files == 18


def test_shards_hold_what_the_pure_calls_give(first) -> None:
    _, out, _ = first
    found = clips(out)
    assert len(found) == 14
    skeleton = generic_skeleton()
    for number in (1, 7, 12):
        clip = found[f"moves/take{number:02d}.clip#{number}"]
        motion, fit = to_motion(made_clip(number, ""), skeleton)
        whole = canonical_clip(motion)
        np.testing.assert_array_equal(clip.rot6d, whole.rot6d.numpy())
        np.testing.assert_array_equal(clip.transl, whole.transl.numpy())
        assert clip.captions[0].text == f"a person moves in way {number}"
        assert clip.licence == "CC0-1.0"
        assert clip.scale == fit.scale
        assert clip.quality["static_share"] == 0.0
        assert clip.provenance["file"] == f"moves/take{number:02d}.clip"


def test_a_mirrored_take_is_in_the_group_of_the_other(first) -> None:
    found = clips(first[1])
    groups = {name: clip.split_group for name, clip in found.items()}
    assert groups["moves/take04.clip#4"] == groups["moves/mirror.clip#m4"]
    assert len(set(groups.values())) == 13


def test_statistics_are_those_of_the_train_split(first) -> None:
    _, out, _ = first
    dataset = open_dataset(out)
    features = torch.cat(
        [
            encode_features(
                torch.from_numpy(c.rot6d), torch.from_numpy(c.transl), dataset.skeleton
            ).double()
            for c in iter_shards(dataset, "train")
        ]
    ).numpy()
    stats = dataset.stats()
    assert stats.num_frames == len(features)
    np.testing.assert_allclose(stats.mean, features.mean(0), atol=1e-5)
    np.testing.assert_allclose(stats.std, features.std(0), atol=1e-5)
    saved = json.loads((out / "stats.json").read_text())
    assert {135, 136, 137} <= set(saved["constant"])


def test_the_folder_says_what_it_holds_and_nothing_of_the_work_is_left(first) -> None:
    _, out, report = first
    assert check_dataset(out) == []
    assert not (out / ".work").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["counts"]["clips"] == 14
    assert manifest["counts"]["by_licence"]["CC0-1.0"]["clips"] == 14
    assert sum(s["num_clips"] for s in manifest["shards"]) == 14
    assert len(manifest["shards"]) > 2
    assert report.dataset == manifest["counts"]
    assert {p.name for p in out.iterdir()} == {
        *("config.json", "manifest.json", "stats.json", "summary.json", "report.html"),
        *("clips.html", "shards", "clips", "rejects", "files", "samples"),
    }


def test_the_report_shows_counts_reasons_and_pictures_and_asks_no_network(first) -> None:
    page = (first[1] / "report.html").read_text(encoding="utf-8")
    for words in ("duplicate", "cannot read this", "static", "CC0-1.0", "<svg", "data:image/png"):
        assert words in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_same_command_reads_nothing_and_changes_no_byte(first) -> None:
    source, out, report = first
    before = files(out)
    again = run(out, source)
    assert files(out) == before
    assert (again.files_read, again.files_done) == (0, 18)
    assert (again.accepted, again.rejected, again.exit_code) == (14, 5, 1)
    assert again.rejected_by_reason == report.rejected_by_reason


def test_more_sources_extend_the_dataset_and_leave_what_is_there(first, tmp_path: Path) -> None:
    source, out, _ = first
    grown = tmp_path / "out"
    shutil.copytree(out, grown)
    before, old = clips(grown), files(grown / "shards")
    more = write(tmp_path / "more", {"a.clip": "50", "twin.clip": "7", "b.clip": "m5"})
    report = run(grown, source, more)
    assert (report.files_read, report.files_done) == (3, 18)
    assert (report.accepted, report.rejected) == (16, 6)
    after = clips(grown)
    assert {k: files(grown / "shards")[k] for k in old} == old
    assert set(after) - set(before) == {"more/a.clip#50", "more/b.clip#m5"}
    assert after["more/b.clip#m5"].split_group == before["moves/take05.clip#5"].split_group
    assert check_dataset(grown) == []
    rejected = [take(r["name"]) for r in table(grown, "rejects") if r["code"] == "duplicate"]
    assert "more/twin.clip#7" in rejected
    alone = run(grown, more)
    assert (alone.accepted, alone.rejected, alone.exit_code) == (2, 1, 1)


def test_other_settings_and_other_folders_are_refused(first, tmp_path: Path) -> None:
    source, out, _ = first
    config = IngestConfig(sources=(str(source),), out=str(out))
    gates = dataclasses.replace(config.gates, max_skate=0.25)
    with pytest.raises(OutputError, match=r"gates.max_skate is 0.5 there, 0.25 here"):
        run_ingest(dataclasses.replace(config, gates=gates), lambda line: None, FolderReader())
    thesis = write(tmp_path / "mine", {"thesis.txt": "mine"})
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        run(thesis, source)
    assert [p.name for p in thesis.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_a_reader_that_crashes_or_hangs_costs_its_own_file_only(ray, tmp_path: Path) -> None:
    source = write(
        tmp_path / "moves",
        {"a.clip": "1", "b.clip": "2 kill", "c.clip": "3", "d.clip": "hang", "e.clip": "4"},
    )
    work = WorkConfig(num_readers=2, chunk_files=3, clip_timeout_s=2, reader_tries=1)
    report = run(tmp_path / "out", source, work=work)
    assert (report.accepted, report.exit_code) == (3, 1)
    assert report.rejected_by_reason == {"reader_died": 2}
    assert sorted(c.split("#")[0] for c in clips(tmp_path / "out")) == [
        f"moves/{n}.clip" for n in "ace"
    ]
    rejects = {r["name"]: r["message"] for r in table(tmp_path / "out", "rejects")}
    assert set(rejects) == {"moves/b.clip", "moves/d.clip"}
    assert "stopped the process" in rejects["moves/d.clip"]


def test_nothing_but_rejects_is_exit_2_and_no_motion_a_warning(ray, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad", {"a.clip": "refuse", "b.clip": "raise"})
    report = run(tmp_path / "out", bad)
    assert (report.exit_code, report.rejected) == (2, 2)
    assert "bad_fps 1" in report.words()
    assert run(tmp_path / "out", bad).exit_code == 2
    (tmp_path / "none").mkdir()
    report = run(tmp_path / "empty", tmp_path / "none")
    assert report.exit_code == 0
    assert report.words().startswith("warning: the sources hold no motion")
    assert not (tmp_path / "empty").exists()


def test_a_job_stopped_before_its_commit_goes_on_without_doing_anything_again(
    first, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is read and every shard written; only the manifest is missing."""
    source, out, _ = first

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "commit_round", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "out", source)
    assert not (tmp_path / "out" / "manifest.json").exists()
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "shards").iterdir()}
    assert stamps
    run(tmp_path / "out", source)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert files(tmp_path / "out" / "shards") == files(out / "shards")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()


def test_two_ingests_into_one_folder_are_one_too_many(first, tmp_path: Path) -> None:
    source, out, _ = first
    shutil.copytree(out, tmp_path / "out")
    before = files(tmp_path / "out")
    with (
        Lease(open_store(tmp_path / "out"), lambda line: None, keeps_scratch=True),
        pytest.raises(OutputError, match=rf"in use by process {os.getpid()}"),
    ):
        run(tmp_path / "out", source)
    assert files(tmp_path / "out") == before


def test_an_ingest_whose_folder_was_taken_over_commits_nothing(
    ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write(tmp_path / "moves", {"a.clip": "1"}), tmp_path / "out"

    def lose(catalogue: Catalogue) -> int:
        lease = out / ".work" / "lease.json"
        lease.write_text(json.dumps(json.loads(lease.read_text()) | {"token": "another"}))
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "drop_duplicates", lose)
        with pytest.raises(OutputError, match="another driver has taken it over"):
            run(out, source)
    assert not (out / "manifest.json").exists()
    lease = out / ".work" / "lease.json"
    lease.write_text(json.dumps(json.loads(lease.read_text()) | {"process": "1/0"}))  # it died
    assert run(out, source).accepted == 1
    assert not (out / ".work").exists()


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
import folder_reader, ray.cloudpickle
from folder_reader import FolderReader
ray.cloudpickle.register_pickle_by_value(folder_reader)
from hymotion_ray.config.ingest import IngestConfig, ShardConfig, WorkConfig
from hymotion_ray.engine.dataset.job import run_ingest
config = IngestConfig(
    sources=({source!r},), out={out!r}, report_clips=2,
    shards=ShardConfig(target_mb=0.4, row_group_mb=0.1),
    work=WorkConfig(num_readers=1, chunk_files=1, round_files=4),
)
run_ingest(config, print, FolderReader())
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_what_an_unbroken_run_does(ray, tmp_path: Path) -> None:
    """Killed in its second round: the first is committed, of the second some parts are there."""
    source = write(tmp_path / "moves", {f"t{k}.clip": f"slow {k}" for k in range(8)})
    out = tmp_path / "out"
    folder = tempfile.mkdtemp(prefix="hmk", dir="/tmp")
    code = DRIVER.format(tests=str(Path(__file__).parent.parent), source=str(source), out=str(out))
    driver = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "RAY_TMPDIR": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        parts: list[Path] = []
        while driver.poll() is None and not ((out / "manifest.json").exists() and parts):
            time.sleep(0.05)
            parts = list((out / ".work" / "parts").glob("*/index.parquet"))
        assert driver.poll() is None, "the driver ended before it could be killed"
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        shutil.rmtree(folder, ignore_errors=True)
    held = json.loads((out / "manifest.json").read_text())["counts"]["clips"]
    assert held == 4
    work = WorkConfig(num_readers=2, chunk_files=1, round_files=4)
    report = run(out, source, work=work)
    assert (report.files_done, report.files_read, report.accepted) == (4, 4, 8)
    run(tmp_path / "unbroken", source, work=work)
    kept = {k: v for k, v in files(out).items() if k not in ("config.json", "summary.json")}
    other = {
        k: v
        for k, v in files(tmp_path / "unbroken").items()
        if k not in ("config.json", "summary.json")
    }
    assert kept == other


def test_the_command_lists_without_reading_and_prints_one_document(tmp_path: Path) -> None:
    source = write(tmp_path / "moves", {"a.txt": "no motion", "b.bvh": "HIERARCHY"})
    args = [str(source), "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    result = click.testing.CliRunner().invoke(ingest, args)
    assert result.exit_code == 0, result.output
    described = json.loads(result.stdout)
    assert described["files"] == described["new"] == 2
    assert described["stages"] == ["list", "read", "convert", "gate", "dedupe", "shard"]
    assert not (tmp_path / "out").exists()
    bad = click.testing.CliRunner().invoke(ingest, [*args, "--set", "gates.max_skte=1"])
    assert "max_skate" in str(bad.exception)


def test_a_pass_over_the_data_gives_every_clip_once_in_another_order_each_epoch(first) -> None:
    _, out, _ = first
    orders = [[c.clip_id for c in iter_shards(out, "train", epoch=e)] for e in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(Counter(order).items()) for order in orders}) == 1


@pytest.mark.slow
def test_the_sample_collections_are_ingested_or_rejected_for_named_reasons(
    ray, shared: Path, tmp_path: Path
) -> None:
    config = IngestConfig(
        sources=(str(shared / "corpus"), str(shared / "motions")),
        out=str(tmp_path / "out"),
        work=WorkConfig(num_readers=2, chunk_files=4),
    )
    report = run_ingest(config, lambda line: None)
    assert report.exit_code == 1
    assert report.accepted > 100
    assert not {"reader_died", "unusable", "damaged", "name_taken"} & set(report.rejected_by_reason)
    assert report.captions["outside"] == report.captions["unreadable"] == 0
    told = {r["file"] for r in table(tmp_path / "out", "rejects")}
    told |= {r["file"] for r in table(tmp_path / "out", "clips")}
    assert told == {r["key"] for r in table(tmp_path / "out", "files")}
    falls = [r["fall"] for r in table(tmp_path / "out", "clips") if r["fall"] is not None]
    assert len(falls) >= 5
    assert np.median(falls) == pytest.approx(1.0, abs=0.2)
