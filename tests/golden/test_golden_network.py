"""The network and the sampler against the golden vectors, at the stated tolerances."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from hymotion_ray.config import Grid, NetworkConfig, SamplingConfig
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.path import noise
from hymotion_ray.model import MotionMMDiT

GOLDEN = Path(__file__).parent
CASES = sorted(p.parent.name for p in GOLDEN.glob("*/latest.ckpt"))
PREFIX = "motion_transformer."
SAME_NAMED = {f.name for f in dataclasses.fields(NetworkConfig)}


class Case:
    """One golden folder: its settings, its weights as a network, and what is expected of it."""

    def __init__(self, name: str) -> None:
        folder = GOLDEN / name
        settings = yaml.safe_load((folder / "config.yml").read_text())
        args = settings["network_module_args"]
        self.pipeline = settings["train_pipeline_args"]
        config = NetworkConfig(**{key: args[key] for key in SAME_NAMED & set(args)})
        # The file is ours and holds tensors only; the package's reader has tests of its own.
        checkpoint = torch.load(folder / "latest.ckpt", weights_only=True)
        state = checkpoint["model_state_dict"]
        self.state: dict[str, Tensor] = state
        self.network = MotionMMDiT(config, self.pipeline["train_frames"])
        self.network.load_state_dict(
            {key.removeprefix(PREFIX): v for key, v in state.items() if key.startswith(PREFIX)}
        )
        self.expected = load_file(folder / "expected.safetensors")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_four_cases_are_here() -> None:
    assert len(CASES) == 4


@torch.no_grad()
def test_network_equals_golden(case: Case) -> None:
    e = case.expected
    inputs = [e[f"net.{key}"] for key in ("x", "ctxt", "vtxt", "t", "x_length", "ctxt_length")]
    out = case.network(*inputs)
    frames = torch.arange(out.shape[1])
    out[frames >= e["net.x_length"].unsqueeze(1)] = 0.0
    assert relative(out, e["net.out"]) <= 1e-6


def conditions(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(case.expected[f"net.{key}"] for key in ("ctxt", "vtxt", "ctxt_length"))


def sampler(case: Case, **grid: int) -> Sampler:
    return Sampler(
        case.network,
        null_vector=case.state["null_vtxt_feat"],
        null_context=case.state["null_ctxt_input"],
        train_frames=case.pipeline["train_frames"],
        enable_ctxt_null_feat=case.pipeline["enable_ctxt_null_feat"],
        grid=Grid(**grid),
    )


def settings(case: Case) -> SamplingConfig:
    return SamplingConfig(
        num_steps=case.pipeline["infer_noise_scheduler_cfg"]["validation_steps"],
        guidance_scale=case.pipeline["test_cfg"]["text_guidance_scale"],
        method=case.pipeline["noise_scheduler_cfg"]["method"],
    )


def golden_rows(case: Case) -> list[Row]:
    num_frames = case.expected["sample.latent"].shape[1]
    seeds = case.expected["sample.seeds"].tolist()
    return [Row(prompt=i, num_frames=num_frames, seed=seed) for i, seed in enumerate(seeds)]


def test_noise_equals_golden(case: Case) -> None:
    want = case.expected["sample.noise"]
    for seed, expected in zip(case.expected["sample.seeds"].tolist(), want, strict=True):
        assert torch.equal(noise(seed, len(expected)), expected)


@pytest.mark.parametrize("rows", [1, 4])
def test_sample_equals_golden(case: Case, rows: int) -> None:
    got = sampler(case, rows=rows).sample(*conditions(case), golden_rows(case), settings(case))
    for latent, want in zip(got, case.expected["sample.latent"], strict=True):
        assert relative(latent, want) <= 3e-6


def test_dense_sample_equals_golden(case: Case) -> None:
    got = sampler(case, rows=2).sample_dense(*conditions(case), golden_rows(case), settings(case))
    assert relative(torch.stack(got), case.expected["sample.latent"]) <= 3e-6
