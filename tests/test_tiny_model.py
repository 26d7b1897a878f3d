"""The built-in model does what its prompts say, by the joints of its clips (see examples/tiny)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.motion.ground import sole_heights

NUM_SEEDS = 4
MAX_BYTES = 15_000_000


@pytest.fixture(scope="module")
def clips() -> dict[str, list[hm.Motion]]:
    model = hm.load_model("tiny")
    texts = ["a person walks forward", "a person jumps up"]
    rows = [hm.Row(prompt, 90, seed) for prompt in range(2) for seed in range(NUM_SEEDS)]
    motions = model.decode(model.sample(model.encode(texts), rows))
    return {"walk": motions[:NUM_SEEDS], "jump": motions[NUM_SEEDS:]}


def metres_forward(motion: hm.Motion) -> float:
    return float(motion.transl[-1, 2] - motion.transl[0, 2])


def seconds_in_the_air(motion: hm.Motion) -> float:
    soles = sole_heights(motion.joints.double(), motion.skeleton).amin(dim=1)
    return float((soles > soles.amin() + 0.10).sum()) / motion.fps


def test_the_folder_fits_the_package() -> None:
    folder = Path(hm.__file__).parent / "assets" / "tiny"
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= MAX_BYTES


def test_walking_forward_goes_forward(clips: dict[str, list[hm.Motion]]) -> None:
    far = [metres_forward(m) for m in clips["walk"]]
    assert sum(metres > 1.5 for metres in far) >= 3, far
    assert all(seconds_in_the_air(m) < 0.3 for m in clips["walk"])


def test_jumping_up_leaves_the_ground(clips: dict[str, list[hm.Motion]]) -> None:
    aloft = [seconds_in_the_air(m) for m in clips["jump"]]
    assert sum(seconds >= 0.2 for seconds in aloft) >= 3, aloft


def test_seeds_give_unlike_clips(clips: dict[str, list[hm.Motion]]) -> None:
    first, second = clips["walk"][:2]
    assert float((first.joints - second.joints).abs().mean()) > 0.02


def test_clips_are_finite_and_stand_on_the_floor(clips: dict[str, list[hm.Motion]]) -> None:
    for motion in clips["walk"] + clips["jump"]:
        assert bool(torch.isfinite(motion.joints).all())
        assert -0.1 < float(motion.joints[..., 1].min()) < 0.15
