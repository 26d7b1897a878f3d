"""The profile: three steps of the chosen ranks, with shapes, memory and stacks, in files."""

from __future__ import annotations

import json

import torch

from hymotion_ray.engine.train.profile import ACTIVE, PROFILE_FOLDER, WAIT, WARMUP, StepProfiler


def _train(folder, rank, num_steps):
    weights = torch.randn(16, 16, requires_grad=True)
    with StepProfiler(folder, rank=rank, ranks=(0, 2)) as profiler:
        recording = []
        for _ in range(num_steps):
            (torch.randn(8, 16) @ weights).square().mean().backward()
            profiler.step()
            recording.append(profiler.is_recording)
    return recording


def test_a_chosen_rank_leaves_a_trace_of_three_steps(tmp_path):
    recording = _train(tmp_path, 2, 7)
    assert recording == [True] * (WAIT + WARMUP + ACTIVE - 1) + [False] * 3
    folder = tmp_path / PROFILE_FOLDER
    trace = next(folder.glob("rank2.*.pt.trace.json"))
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert sum(name.startswith("ProfilerStep#") for name in names) == ACTIVE
    products = [e for e in events if e.get("name") == "aten::mm" and "args" in e]
    assert [[8, 16], [16, 16]] in [e["args"].get("Input Dims") for e in products]
    assert any(name == "[memory]" for name in names)
    assert any("test_profile.py" in name for name in names)  # stacks
    assert "aten::mm" in (folder / "rank2.txt").read_text()


def test_other_ranks_record_nothing(tmp_path):
    assert _train(tmp_path, 1, 6) == [False] * 6
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_ends_early_does_not_fail(tmp_path):
    assert _train(tmp_path, 0, 2) == [True, True]
