"""Single values of a row: lengths in frames and seconds, seeds, guidance, steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.formats.prompts import PromptRow, Reject, iter_prompts
from hymotion_ray.formats.prompts.values import MAX_SEED


def _row(folder: Path, **fields: Any) -> PromptRow | Reject:
    path = folder / "p.jsonl"
    path.write_text(json.dumps({"text": "walk", **fields}))
    (row,) = iter_prompts(path)
    return row


def _code(folder: Path, **fields: Any) -> str:
    row = _row(folder, **fields)
    assert isinstance(row, Reject)
    return row.code


@pytest.mark.parametrize(
    ("fields", "num_frames"),
    [
        ({}, 150),
        ({"num_frames": 90}, 90),
        ({"num_frames": 90.0}, 90),
        ({"num_frames": "90"}, 90),
        ({"num_frames": ""}, 150),
        ({"num_frames": None}, 150),
        ({"duration": 3}, 90),
        ({"duration": "3.0"}, 90),
        ({"duration": 0.7}, 21),
        ({"num_frames": 90, "duration": 3}, 90),
        ({"num_frames": 100, "duration": 3.33}, 100),
        ({"num_frames": 4999}, 360),
        ({"duration": 0.02}, 20),
        ({"duration": 60}, 360),
    ],
)
def test_lengths(tmp_path, fields, num_frames):
    row = _row(tmp_path, **fields)
    assert isinstance(row, PromptRow)
    assert row.num_frames == num_frames


@pytest.mark.parametrize(
    "wrong",
    [
        0,
        -30,
        5000,
        1e308,
        10**400,
        float("nan"),
        float("inf"),
        90.5,
        True,
        "long",
        [90],
        {},
        "9" * 99,
    ],
)
def test_frames_that_are_rejected(tmp_path, wrong):
    assert _code(tmp_path, num_frames=wrong) == "bad_length"


@pytest.mark.parametrize(
    "wrong", [0, -1.5, 0.01, 166.66, 167, 1e308, 10**400, float("nan"), float("-inf"), False, "3s"]
)
def test_durations_that_are_rejected(tmp_path, wrong):
    assert _code(tmp_path, duration=wrong) == "bad_length"


def test_frames_and_seconds_that_disagree(tmp_path):
    assert _code(tmp_path, num_frames=90, duration=5) == "conflicting_length"


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_every_number_is_a_length_or_a_reject(tmp_path_factory, number):
    folder = tmp_path_factory.mktemp("v")
    for field in ("num_frames", "duration"):
        row = _row(folder, **{field: number})
        assert isinstance(row, Reject) or 20 <= row.num_frames <= 360


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (7, (7,)),
        ([1, 2], (1, 2)),
        ("1 2", (1, 2)),
        ([3.0], (3,)),
        (0, (0,)),
        ([MAX_SEED], (MAX_SEED,)),
    ],
)
def test_seeds(tmp_path, seeds, expected):
    for name in ("seeds", "seed"):
        row = _row(tmp_path, **{name: seeds})
        assert isinstance(row, PromptRow)
        assert row.seeds == expected
        for seed in expected:
            torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "wrong",
    [-1, MAX_SEED + 1, 10**400, 1.5, True, [], [True], [[1]], "x", "1,x", "1e3.", float("nan")],
)
def test_seeds_that_are_rejected(tmp_path, wrong):
    assert _code(tmp_path, seeds=wrong) == "bad_seeds"


def test_a_repeated_seed_is_one_clip_and_said(tmp_path):
    row = _row(tmp_path, seeds=[3, 1, 3])
    assert isinstance(row, PromptRow)
    assert (row.seeds, row.warnings) == ((3, 1), ("seeds_repeated",))


def test_seeds_and_seed_may_not_disagree(tmp_path):
    assert _code(tmp_path, seeds=[1], seed=2) == "conflicting_columns"


def test_guidance_and_steps_keep_the_samplers_limits(tmp_path):
    row = _row(tmp_path, guidance_scale="2.5", num_steps=10.0)
    assert isinstance(row, PromptRow)
    assert (row.guidance_scale, row.num_steps) == (2.5, 10)
    for wrong in (-1, 1e308, 10**400, float("nan"), True, "high", [1]):
        assert _code(tmp_path, guidance_scale=wrong) == "bad_guidance_scale"
    for wrong in (0, -1, 1001, 2.5, 1e308, float("nan"), float("inf"), True, "many"):
        assert _code(tmp_path, num_steps=wrong) == "bad_num_steps"


def test_every_message_says_what_is_allowed(tmp_path):
    for fields in ({"num_frames": 0}, {"seeds": -1}, {"guidance_scale": -1}, {"num_steps": 0}):
        row = _row(tmp_path, **fields)
        assert isinstance(row, Reject)
        assert "allowed" in row.message
        assert next(iter(fields)) in row.message


_FIELDS = ["text", "id", "num_frames", "duration", "seeds", "group", "guidance_scale", "num_steps"]
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=3)


@given(st.dictionaries(st.sampled_from([*_FIELDS, "body"]), _VALUES))
def test_no_row_whatever_it_holds_raises(tmp_path_factory, fields):
    path = tmp_path_factory.mktemp("v") / "p.jsonl"
    path.write_text(json.dumps(fields))
    rows = list(iter_prompts(path, warn=lambda _: None))
    assert len(rows) == 1
    assert isinstance(rows[0], (PromptRow, Reject))
    repr(rows[0]).encode()
