"""Watching: lines of metrics survive kills and resumes, ranks are compared, time is shared out."""

from __future__ import annotations

import json
import math
import struct
import time

import pytest

from hymotion_ray.config.training import tiny_model
from hymotion_ray.engine.train.metrics_file import METRICS_FILE, read_metrics
from hymotion_ray.engine.train.mfu import peak_flops, train_flops
from hymotion_ray.engine.train.step_clock import StepClock
from hymotion_ray.engine.train.trackers import TENSORBOARD_FOLDER
from hymotion_ray.engine.train.watch import Watch, gather_ranks, per_rank, straggler
from hymotion_ray.errors import ConfigError, MissingDependencyError


def _watch(folder, rank=0, **options):
    return Watch(folder, rank=rank, world_size=2, tensorboard=False, **options)


def _steps(folder):
    return [row["step"] for row in read_metrics(folder / METRICS_FILE)]


def _run(folder, steps, resumed=None):
    watch = _watch(folder)
    if resumed is not None:
        watch.resume(resumed)
    for step in steps:
        watch.log(step, {"loss": 1 / step})
    watch.close()


def test_a_resumed_run_leaves_the_file_of_an_unbroken_one(tmp_path):
    _run(tmp_path / "whole", range(1, 9))
    _run(tmp_path / "broken", range(1, 7))
    _run(tmp_path / "broken", range(4, 9), resumed=3)
    assert (tmp_path / "broken" / METRICS_FILE).read_bytes() == (
        tmp_path / "whole" / METRICS_FILE
    ).read_bytes()


def test_resuming_drops_later_steps_even_where_none_of_them_is_logged_again(tmp_path):
    _run(tmp_path, [2, 4, 6, 8])
    _run(tmp_path, [10], resumed=5)
    assert _steps(tmp_path) == [2, 4, 10]


def test_without_a_resume_the_first_step_drops_what_follows_it(tmp_path):
    _run(tmp_path, [1, 2, 3, 4])
    _run(tmp_path, [3])
    assert _steps(tmp_path) == [1, 2, 3]


def test_a_line_cut_in_two_by_a_kill_is_cleared_away(tmp_path):
    _run(tmp_path, [1, 2])
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert _steps(tmp_path) == [1, 2]
    _run(tmp_path, [3])
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_numbers_that_json_lacks_are_null(tmp_path):
    watch = _watch(tmp_path)
    watch.log(1, {"loss": math.nan, "grad_norm": math.inf, "clips": 3})
    line = (tmp_path / METRICS_FILE).read_text()
    assert json.loads(line) == {"step": 1, "loss": None, "grad_norm": None, "clips": 3}
    assert "NaN" not in line


def test_only_rank_0_writes(tmp_path):
    watch = _watch(tmp_path / "run", rank=1)
    watch.resume(0)
    watch.log(1, {"loss": 1.0})
    watch.show(1, 2)
    watch.close()
    assert not (tmp_path / "run").exists()


def test_unknown_and_missing_trackers_are_refused_before_the_run(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"'comet'; allowed: wandb, mlflow"):
        _watch(tmp_path, trackers=("comet",))
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match="pip install wandb"):
        _watch(tmp_path, trackers=("wandb",))


def test_tensorboard_holds_the_scalars_and_where_the_run_was_resumed(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for steps in ([1, 2, 3], [2]):
        watch = Watch(tmp_path, rank=0, world_size=1, tensorboard=True)
        for step in steps:
            watch.log(step, {"loss": 1.0 / step})
        watch.close()
        if len(steps) > 1:
            time.sleep(1.1)  # event files are named by the second, and are read in that order
    scalars, starts = [], []
    for path in sorted((tmp_path / TENSORBOARD_FOLDER).iterdir()):
        for event in _events(path, event_pb2):
            if event.HasField("session_log"):
                starts.append(event.step)
            scalars += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    assert [(tag, step) for tag, step, _ in scalars] == [("loss", s) for s in (1, 2, 3, 2)]
    assert scalars[1][2] == pytest.approx(0.5)
    assert starts == [1, 2]


def _events(path, event_pb2):
    """Records of an event file: length (8 bytes), its checksum (4), content, checksum (4)."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = event_pb2.Event()
        event.ParseFromString(content[at + 12 : at + 12 + length])
        yield event
        at += length + 16


def test_progress_is_told_in_the_words_of_every_job(tmp_path, capsys):
    watch = _watch(tmp_path)
    for step in (5, 6):
        watch.log(step, {"loss": 0.25})
        watch.show(step, 8)
    watch.close()
    assert "train: 6/8 steps" in capsys.readouterr().err


# --- ranks ----------------------------------------------------------------------------------------


def test_the_rank_that_lags_is_named():
    assert straggler([1.0, 1.01, 1.4, 0.99]) == 2
    assert straggler([1.0, 1.0]) is None
    assert straggler([1.0, 1.29]) is None
    assert straggler([1.31, 1.0]) == 0
    assert straggler([9.0]) is None
    assert straggler([1.0, 1.4, 1.0], factor=1.5) is None


def test_numbers_of_ranks_become_one_row():
    rows = [{"loss": 1.0, "own_s": 0.1}, {"loss": 2.0, "own_s": 0.5}]
    assert per_rank(rows, ["loss"]) == {"loss/rank0": 1.0, "loss/rank1": 2.0, "straggler": 1}
    assert per_rank([{"loss": 1.0}], ["loss"]) == {"loss/rank0": 1.0}
    assert gather_ranks({"b": 2, "a": 1}) == [{"a": 1.0, "b": 2.0}]


# --- time -----------------------------------------------------------------------------------------


def test_the_clock_shares_out_the_time_of_its_steps():
    clock = StepClock()
    assert clock.read() == {}
    for _ in range(2):
        with clock.waiting():
            time.sleep(0.03)
        with clock.working():
            time.sleep(0.01)
        time.sleep(0.01)
        clock.step(num_clips=4, num_flops=1e9)
    values = clock.read()
    assert values["step_s"] >= 0.05
    assert 0.04 <= values["own_s"] <= values["step_s"] - 0.01
    assert 0 < values["data_wait_percent"] < 100
    assert values["clips_per_s"] == pytest.approx(4 / values["step_s"])
    assert values["memory_gib"] > 0.01
    assert "mfu" not in values  # a processor's peak is not known
    assert clock.read() == {}


def test_peaks_go_by_the_whole_name():
    assert peak_flops("NVIDIA A10") == 125e12
    assert peak_flops("NVIDIA A10G") == 70e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("Tesla T4") == 65e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165e12
    assert peak_flops("") is None
    assert peak_flops("AMD EPYC 7R13") is None


def test_operations_of_a_step_are_near_six_a_weight_and_position():
    """Kaplan et al. 2020: about 6 N D for short sequences; text and motion weights differ here."""
    network = tiny_model(64).network
    one = train_flops(network, 1, 40, 8)
    assert train_flops(network, 3, 40, 8) == 3 * one
    weights_a_layer = 12 * network.feat_dim**2
    assert one == pytest.approx(6 * network.num_layers * weights_a_layer * 48, rel=0.3)
