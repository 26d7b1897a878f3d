"""Notebook calls with arrays of every make: equal results, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.errors import CheckpointError, ConfigError, HyMotionError, SamplingError

RELEASE = Path(__file__).parent.parent / "golden" / "release_like"


@pytest.fixture(scope="module")
def model() -> hm.Model:
    return hm.load_model(RELEASE)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "x": torch.randn(2, 30, 201, generator=generator),
        "context": torch.randn(2, 6, 32, generator=generator),
        "vector": torch.randn(2, 1, 24, generator=generator),
        "t": torch.tensor([0.25, 0.5]),
        "x_length": torch.tensor([30, 11]),
        "context_length": torch.tensor([6, 0]),
    }


@pytest.fixture(scope="module")
def condition(inputs: dict[str, torch.Tensor]) -> hm.TextCondition:
    return hm.TextCondition(
        context=inputs["context"], vector=inputs["vector"], length=inputs["context_length"]
    )


def strided(value: torch.Tensor) -> torch.Tensor:
    return torch.stack([value, value], dim=-1)[..., 0]


@pytest.mark.parametrize(
    "form",
    [
        lambda v: v.numpy(),
        lambda v: v.tolist(),
        lambda v: v.double() if v.is_floating_point() else v.int(),
        strided,
        lambda v: v.clone().requires_grad_() if v.is_floating_point() else v,
    ],
)
def test_velocity_takes_arrays_of_every_make(
    model: hm.Model, inputs: dict[str, torch.Tensor], form: Callable[[torch.Tensor], Any]
) -> None:
    plain = model.velocity(**inputs)
    made = model.velocity(**{name: form(value) for name, value in inputs.items()})
    assert torch.equal(plain, made)
    assert not made.requires_grad


def test_velocity_of_no_rows(model: hm.Model, inputs: dict[str, torch.Tensor]) -> None:
    none = model.velocity(**{name: value[:0] for name, value in inputs.items()})
    assert none.shape == (0, 30, 201)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": "walk"}, "x is str and no array of numbers"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x is list and no array of numbers"),
        ({"x": torch.zeros(2, 30, 201, dtype=torch.complex64)}, "x is torch.complex64"),
        ({"x": torch.zeros(2, 0, 201)}, r"x has shape \(2, 0, 201\)"),
        ({"x_length": None}, "x_length is NoneType"),
        ({"x_length": [30.0, 11.0]}, "x_length is torch.float32; allowed: whole numbers"),
        ({"context_length": torch.ones(2, 6, dtype=torch.bool)}, "lengths and not masks"),
    ],
)
def test_velocity_names_what_is_no_array(
    model: hm.Model, inputs: dict[str, torch.Tensor], change: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        model.velocity(**(inputs | change))


def test_rows_of_every_make_and_order(model: hm.Model, condition: hm.TextCondition) -> None:
    rows = [hm.Row(prompt=p, num_frames=n, seed=s) for p, n, s in ((0, 30, 7), (1, 1, 2**64 - 1))]
    plain = model.sample(condition, rows, num_steps=2)
    from_numpy = [
        hm.Row(np.int64(row.prompt), np.int32(row.num_frames), np.uint64(row.seed)) for row in rows
    ]
    assert from_numpy == rows
    as_generator = (row for row in from_numpy)
    again = model.sample(condition, as_generator, num_steps=np.int64(2))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    twice = model.sample(condition, [rows[1], rows[0], rows[0]], num_steps=2)
    assert all(torch.equal(a, plain[i]) for a, i in zip(twice, (1, 0, 0), strict=True))
    assert model.sample(condition, []) == []


@pytest.mark.parametrize("field", ["prompt", "num_frames", "seed"])
@pytest.mark.parametrize("value", [1.0, "1", None, [1]])
def test_a_row_is_whole_numbers(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"row's {field} is .*; allowed: a whole number"):
        hm.Row(**{"prompt": 0, "num_frames": 30, "seed": 1, field: value})


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([(0, 30, 1)], "row 0 is tuple; allowed: Row"),
        (hm.Row(prompt=0, num_frames=30, seed=1), "a single Row; allowed: a list"),
        ([hm.Row(prompt=2, num_frames=30, seed=1)], "prompt 2; allowed: 0 to 1"),
        ([hm.Row(prompt=0, num_frames=30, seed=2**64)], "64-bit"),
    ],
)
def test_rows_that_are_none(
    model: hm.Model, condition: hm.TextCondition, rows: Any, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        model.sample(condition, rows)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"num_steps": 2.0}, "num_steps is 2.0"),
        ({"num_steps": "2"}, "num_steps is '2'"),
        ({"guidance_scale": "3"}, "guidance_scale is '3'"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan"),
    ],
)
def test_settings_of_another_type(
    model: hm.Model, condition: hm.TextCondition, settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        model.sample(condition, [hm.Row(prompt=0, num_frames=30, seed=1)], **settings)


@pytest.mark.parametrize(("context", "vector"), [(31, 24), (32, 25)])
def test_features_of_another_encoder_are_named(model: hm.Model, context: int, vector: int) -> None:
    foreign = hm.TextCondition(
        context=torch.zeros(1, 4, context), vector=torch.zeros(1, 1, vector), length=[4]
    )
    with pytest.raises(ConfigError, match=r"wide; allowed: (32|24), the width"):
        model.sample(foreign, [hm.Row(prompt=0, num_frames=30, seed=1)])


def test_latents_of_every_make(model: hm.Model) -> None:
    latent = torch.randn(12, 201, generator=torch.Generator().manual_seed(1))
    motion = model.decode(latent)
    for made in (latent.numpy(), latent.double(), latent.T.contiguous().T):
        assert torch.equal(model.decode(made).joints, motion.joints)
    assert [m.num_frames for m in model.decode([latent.numpy(), latent[:1]])] == [12, 1]


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e9, 1e30])
@pytest.mark.parametrize("smooth", [True, False])
def test_a_latent_that_diverged_names_its_clip(
    model: hm.Model, factor: float, smooth: bool
) -> None:
    good = torch.ones(12, 201)
    with pytest.raises(SamplingError, match="clip 1 holds NaN, infinity or numbers beyond"):
        model.decode([good, good * factor], smooth=smooth)


@pytest.mark.parametrize("texts", [[None], ["a", 3], [b"walk"]])
def test_texts_are_str(texts: list[Any]) -> None:
    with pytest.raises(ConfigError, match="allowed: str"):
        hm.load_model("tiny").encode(texts)


@pytest.mark.parametrize("name", [None, "", 5, "no\0where"])
def test_names_of_no_model(name: Any) -> None:
    with pytest.raises(CheckpointError, match="model"):
        hm.load_model(name)


@pytest.mark.parametrize("device", [None, "gpu", "meta", "xpu", "mps"])
def test_devices_that_are_not_here(device: Any) -> None:
    with pytest.raises(HyMotionError, match="device is"):
        hm.load_model(RELEASE, device=device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "auto"])
def test_every_precision_samples_and_says_why(condition: hm.TextCondition, dtype: str) -> None:
    model = hm.load_model(RELEASE, dtype=dtype)
    assert model.precision == ("float32" if dtype == "auto" else dtype)
    assert model.precision_reason.startswith("a cpu device" if dtype == "auto" else "asked for")
    (latent,) = model.sample(
        condition, [hm.Row(prompt=0, num_frames=20, seed=1)], num_steps=2, guidance_scale=1.5
    )
    assert latent.dtype == torch.float32
    assert bool(latent.isfinite().all())


@pytest.mark.parametrize("bad", [None, 5, object(), {"a": 1}, [None]])
def test_what_is_no_input_is_named(
    model: hm.Model, condition: hm.TextCondition, bad: Any, tmp_path: Path
) -> None:
    motion = model.decode(torch.zeros(20, 201))
    calls: list[Callable[[], object]] = [
        lambda: model.decode(bad),
        lambda: model.encode(bad),
        lambda: model.sample(bad, [hm.Row(prompt=0, num_frames=20, seed=1)]),
        lambda: model.sample(condition, bad),
        lambda: hm.read_prompts(bad),
        lambda: hm.load_model(bad),
        lambda: hm.load_motion(bad),
        lambda: hm.save_motion(bad, tmp_path / "a.npz"),
        lambda: hm.save_motion(motion, bad),
        lambda: hm.render(bad),
        lambda: hm.render(["a person walks"], formats=bad),
        lambda: hm.render(["a person walks"], seeds=[1, str(bad)]),
    ]
    for call in calls:
        with pytest.raises(HyMotionError, match=r"allowed|no array of numbers"):
            call()
