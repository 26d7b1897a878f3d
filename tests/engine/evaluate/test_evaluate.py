"""Evaluation of folders and datasets: each clip once, rejects by name, judged as it moves."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from made_sources import PROMPTS, doing, standing, write_dataset, write_folder, write_prompts

from hymotion_ray.cli import main
from hymotion_ray.config.evaluate import EvaluateConfig
from hymotion_ray.engine.evaluate import tally as tally_module
from hymotion_ray.engine.evaluate.job import run_evaluate
from hymotion_ray.engine.evaluate.judgement import repeated, windows_of
from hymotion_ray.engine.evaluate.measure import measure_piece
from hymotion_ray.engine.evaluate.model import model_of
from hymotion_ray.engine.evaluate.source import find_source, iter_pieces
from hymotion_ray.engine.evaluate.tally import Tally
from hymotion_ray.engine.manifest import write_part
from hymotion_ray.engine.train.checkpoints import COMPLETE
from hymotion_ray.errors import CheckpointError, ConfigError, InputError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.motions import encode_motion, save_motion
from hymotion_ray.motion.metrics import clip_metrics
from hymotion_ray.motion.metrics_actions import statistics
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.rotations import matrix_to_rot6d


def _run(path, **options):
    said = []
    return run_evaluate(EvaluateConfig(path=str(path), num_workers=0, **options), said.append)


def _command(*arguments):
    result = CliRunner().invoke(main, ["evaluate", *map(str, arguments), "--workers", "0"])
    return result.exit_code, result.stdout, result.stderr


# --- what there is at a path ----------------------------------------------------------------------


def test_each_clip_counts_once_whatever_formats_it_has(tmp_path):
    folder = write_folder(tmp_path / "clips")
    for suffix in ("glb", "bvh", "usda"):
        save_motion(doing("walk"), folder / f"0_s0.{suffix}")
    save_motion(doing("walk"), folder / "alone.BVH")
    (folder / "notes.txt").write_text("no motion")
    names = [name for piece in iter_pieces(find_source(str(folder))) for name in piece.names]
    assert names == ["0_s0.npz", "0_s1.npz", "1_s0.npz", "1_s1.npz", "alone.BVH"]
    report = _run(folder)
    assert (report.num_clips, report.num_rejected, report.exit_code) == (5, 0, 0)


def test_numbers_are_those_of_the_pure_calls(tmp_path):
    report = _run(write_folder(tmp_path / "clips"), out=str(tmp_path / "out"))
    rows = {row["name"]: row for row in pq.read_table(tmp_path / "out/clips.parquet").to_pylist()}
    clip = doing("walk", prompt="a person walks forward")
    for name, value in vars(clip_metrics(clip)).items():
        assert rows["0_s0.npz"][name] == pytest.approx(value, abs=1e-4), name
    for name, value in vars(statistics(clip)).items():
        assert rows["0_s0.npz"][f"does_{name}"] == pytest.approx(value, abs=1e-3), name
    assert rows["0_s0.npz"]["skate"] == measure(clip).skate
    skates = [row["skate"] for row in rows.values()]
    assert report.metrics["skate"]["mean"] == pytest.approx(np.mean(skates))
    assert report.metrics["facing"]["num"] == 1  # the others go nowhere


def test_bad_files_are_listed_and_the_rest_is_measured(tmp_path):
    folder = write_folder(tmp_path / "clips")
    (folder / "torn.npz").write_bytes((folder / "0_s0.npz").read_bytes()[:500])
    (folder / "foreign.bvh").write_text("HIERARCHY\nROOT Hips\n")
    code, stdout, _ = _command(folder, "--json", "--out", tmp_path / "out")
    found = json.loads(stdout)
    assert code == found["exit_code"] == 1
    assert (found["num_clips"], found["num_rejected"]) == (4, 2)
    messages = {reject["name"]: reject["message"] for reject in found["first_rejects"]}
    assert set(messages) == {"torn.npz", "foreign.bvh"}
    assert "hymotion-ray ingest" in messages["foreign.bvh"]
    lines = (tmp_path / "out/rejects.jsonl").read_text().splitlines()
    assert {json.loads(line)["name"] for line in lines} == set(messages)
    assert "torn.npz" in (tmp_path / "out/report.html").read_text()
    assert json.loads((tmp_path / "out/report.json").read_text()) == found


@pytest.mark.parametrize("content", [None, b"no npz"])
def test_nothing_measured_is_an_error(tmp_path, content):
    if content:
        (tmp_path / "bad.npz").write_bytes(content)
    code, _, stderr = _command(tmp_path)
    assert code == 2
    assert content or "holds no motions to measure" in stderr


def test_a_missing_path_and_bad_arguments_say_what_is_allowed(tmp_path):
    assert _command(tmp_path / "gone")[0] == 2
    with pytest.raises(InputError, match="no such file or folder; give a folder of motions"):
        _run(tmp_path / "gone")
    with pytest.raises(ConfigError, match="limit"):
        EvaluateConfig(path="x", limit=0)
    bad = tmp_path / "prompts.csv"
    bad.write_text("prompt,action\nhe flies,fly\n")
    with pytest.raises(InputError, match=r"prompts.csv:2: action is 'fly'; allowed: walk, jump"):
        _run(write_folder(tmp_path / "clips"), prompts=str(bad))


def test_one_file_is_a_source(tmp_path):
    save_motion(standing(), tmp_path / "one.npz")
    save_motion(standing(), tmp_path / "two.npz")
    assert _run(tmp_path / "one.npz").num_clips == 1


def test_a_render_is_read_by_its_manifest(tmp_path):
    """Both layouts; failed rows, and files that no row speaks of, are passed by."""
    store = open_store(tmp_path)
    packed = [encode_motion(doing("walk", prompt="p", seed=k), "npz") for k in range(3)]
    store.write_bytes("motions/a_s0.npz", packed[0])
    store.write_bytes("motions/unknown_s0.npz", packed[1])
    sink = io.BytesIO()
    pq.write_table(pa.table({"npz": packed[1:]}), sink)
    store.write_bytes("shards/part-0.parquet", sink.getvalue())
    rows = [
        {"id": "a", "status": "done", "file": "motions/a_s0.npz"},
        {"id": "b", "status": "done", "file": "shards/part-0.parquet#1"},
        {"id": "c", "status": "failed", "file": None},
    ]
    write_part(store, "x", rows)
    assert find_source(str(tmp_path)).kind == "rendered"
    assert _run(tmp_path).num_clips == 2


def test_true_motions_are_compared_by_name(tmp_path):
    folder = write_folder(tmp_path / "clips")
    truth = tmp_path / "truth"
    for name in ("0_s0", "0_s1"):
        save_motion(doing("stand"), truth / f"{name}.glb")
    report = _run(folder, truth=str(truth), out=str(tmp_path / "out"))
    rows = {row["name"]: row for row in pq.read_table(tmp_path / "out/clips.parquet").to_pylist()}
    assert rows["1_s0.npz"]["position_error"] is None
    assert rows["0_s0.npz"]["sliding_against_truth"] == pytest.approx(1 / 30, rel=0.01)
    assert report.metrics["position_error"]["num"] == 2
    assert rows["0_s0.npz"]["position_error"] == pytest.approx(149 / 60, rel=0.01)


def test_a_training_run_is_its_newest_whole_checkpoint(tmp_path):
    said = []
    for step in (3, 6, 9):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        if step < 9:  # the last one was never finished
            (folder / COMPLETE).write_text('{"files": {}}')
    assert model_of(str(tmp_path), said.append) == str(tmp_path / "checkpoints/step-00000006")
    assert "step-00000009" in said[0]
    assert model_of("tiny", said.append) == "tiny"
    assert model_of(str(write_folder(tmp_path / "clips")), said.append) is None
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="without a whole checkpoint"):
        model_of(str(tmp_path / "empty"), said.append)


# --- datasets and references ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    clips = {
        "walk": (doing("walk", 50), ("a person is walking",)),
        "walk-again": (doing("walk", 320), ("a person is walking", "strolling")),
        "stand": (doing("stand"), ("a person stands",)),
        "jump": (doing("jump", 60), ("a leap into the air",)),
        "fails": (doing("stand", 60), ("a leap into the air",)),
    }
    return write_dataset(tmp_path_factory.mktemp("data") / "set", clips, per=2)


def test_a_dataset_is_measured_shard_by_shard(dataset):
    report = _run(dataset)
    assert (report.source["kind"], report.num_clips) == ("dataset", 5)
    assert _run(dataset, limit=3).num_clips == 3
    assert [p.num_clips for p in iter_pieces(find_source(str(dataset)), 3)] == [2, 1]


def test_a_torn_shard_is_a_reject(dataset, tmp_path):
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy)
    (copy / "shards/train-01.parquet").write_bytes(b"torn")
    report = _run(copy)
    assert (report.num_clips, report.num_rejected, report.exit_code) == (3, 1, 1)
    assert "train-01.parquet" in report.first_rejects[0]["name"]


def test_actions_stand_beside_chance_and_the_nearest_real_clips(dataset, tmp_path):
    report = _run(
        write_folder(tmp_path / "clips", num_seeds=4),
        prompts=str(write_prompts(tmp_path / "prompts.csv")),
        reference=str(dataset),
        out=str(tmp_path / "out"),
    )
    rows = {row["action"]: row for row in report.actions()["prompts"]}
    assert (rows["walk"]["num"], rows["walk"]["share"], rows["walk"]["chance"]) == (4, 0.25, 0)
    assert rows["jump"]["share"] == 0.25
    # All windows of both clips with the nearest caption: one played on, and two of the long one.
    assert (rows["walk"]["nearest"], rows["walk"]["nearest_caption"]) == (1, "a person is walking")
    assert (rows["jump"]["nearest"], rows["jump"]["nearest_caption"]) == (
        0.5,
        "a leap into the air",
    )
    assert report.actions()["failing"] == list(PROMPTS)
    assert set(report.distances) == {"frechet_kinetic", "frechet_geometric"}
    assert min(report.distances.values()) > 0
    assert report.reference["metrics"]["skate"]["num"] == 5
    page = (tmp_path / "out/report.html").read_text()
    assert "a person is walking" in page
    assert "<script" not in page
    assert "fid" not in json.dumps(report.to_mapping()).lower()
    assert "chance" in report.words()


def test_a_set_has_no_distance_from_itself(dataset):
    distances = _run(dataset, reference=str(dataset)).distances
    assert distances == pytest.approx(dict.fromkeys(distances, 0), abs=1e-6)


def test_a_short_clip_is_played_on_where_it_ended(dataset):
    clip = doing("walk", 31)
    angles = torch.linspace(0, 1.0, 31)
    rot6d = clip.rot6d.clone()
    for frame, angle in enumerate(angles):
        c, s = float(angle.cos()), float(angle.sin())
        rot6d[frame, 0] = matrix_to_rot6d(torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]]))
    turning = type(clip).from_rotations(rot6d, clip.transl, clip.skeleton, clip.fps)
    longer = repeated(turning, 150)
    found = statistics(longer)
    assert longer.num_frames == 150
    assert longer.joints[:31].allclose(turning.joints, atol=1e-5)
    assert found.turn == pytest.approx(np.degrees(4 + 25 / 30), abs=2)
    steps = longer.joints[:, 0].diff(dim=0).norm(dim=-1)
    assert float(steps.max()) < 0.05
    assert [window.num_frames for window in windows_of(doing("walk", 320))] == [150, 150]


# --- embedders ------------------------------------------------------------------------------------


def test_an_embedder_gives_the_measures_and_their_names(tmp_path, dataset):
    folder = tmp_path / "clips"
    folder.mkdir()
    for seed in range(8):
        for number, (prompt, action) in enumerate(PROMPTS.items()):
            clip = doing(action, 60, prompt=prompt, seed=seed)
            save_motion(clip, folder / f"{number}_{seed:02d}.npz")
    found = _run(folder, embedder="embedders:Travel", reference=str(dataset)).embedding
    assert found["embedder"] == "travel_judge_1"
    assert found["num_sampled"] == 16
    assert found["frechet_travel_judge_1"] > 0
    assert not any(name.startswith("fid") for name in found)
    assert found["multimodality"]["mean"] > 0
    assert found["diversity"]["mean"] > found["multimodality"]["mean"]
    assert 0 <= found["r_precision_top1"]["mean"] <= found["r_precision_top3"]["mean"] <= 1
    assert found["matching_distance"] > 0
    named = _run(folder, embedder="embedders:Standard", reference=str(dataset)).embedding
    assert named["fid_humanml3d"] == found["frechet_travel_judge_1"]
    alone = _run(folder, embedder="embedders:Travel").embedding
    assert "frechet_travel_judge_1" not in alone


def test_a_torchscript_file_is_an_embedder(tmp_path):
    class Mean(torch.nn.Module):
        @torch.jit.export
        def embed_motion(self, joints: torch.Tensor, fps: float) -> torch.Tensor:
            return joints.mean(dim=0).flatten() * fps

        def forward(self, joints: torch.Tensor) -> torch.Tensor:
            return joints

    torch.jit.script(Mean()).save(str(tmp_path / "mean.pt"))
    found = _run(write_folder(tmp_path / "clips"), embedder=str(tmp_path / "mean.pt")).embedding
    assert found["embedder"] == "mean"
    assert found["diversity"]["mean"] > 0
    assert "matching_distance" not in found  # it knows no texts


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("embedders:Empty", "has no embed_motions"),
        ("embedders:Broken", r"shape \(1, 3\) for 4"),
        ("embedders:Gone", "cannot be imported"),
        ("no_such_module:X", "cannot be imported"),
        ("embedders", "module:name"),
        ("gone.pt", "no TorchScript file"),
    ],
)
def test_embedders_that_do_not_work_are_refused(tmp_path, spec, message):
    with pytest.raises(ConfigError, match=message):
        _run(write_folder(tmp_path / "clips"), embedder=spec)


def test_the_sample_of_embeddings_is_bounded_and_fair(tmp_path, monkeypatch):
    monkeypatch.setattr(tally_module, "MAX_EMBEDDED", 50)
    piece = next(iter_pieces(find_source(str(write_folder(tmp_path / "clips")))))
    measured = measure_piece(piece, "embedders:Travel")
    with Tally(tmp_path / "rows.parquet") as tally:
        for number in range(200):
            measured.embedded = np.full((4, 2), float(number))
            tally.add(measured)
    assert len(tally.sample) == 50
    assert tally.embedded.count == tally.num_clips == 800
    numbers = [motion[0] for _, motion, _ in tally.sample]
    assert 70 < np.mean(numbers) < 130
    assert len(set(numbers)) > 30
