"""What approximate modes take: counted as the sampler does it, and beside what an H200 took."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hymotion_ray.cli import render
from hymotion_ray.cli_plan import plan
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.flow.guidance import sampling_steps
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.evaluations import null_evaluations, text_evaluations
from hymotion_ray.planning.plan import Request, make_plan
from hymotion_ray.planning.speed import sampling_rate

FULL = released_network("1.0")
CATALOGUE = load_catalogue()
RESULTS = Path(__file__).parents[2] / "benchmarks/results/h200-2026-12-01-approximate.json"
MEASURED = json.loads(RESULTS.read_text())["1.0B, 64 x 1, 360 frames, 50 steps"]
CASES = {
    "exact": {},
    "euler, 1/2 of the steps": {"num_steps": 25},
    "midpoint, 1/2 of the steps": {"num_steps": 25, "method": "midpoint"},
    "guidance 0.1 to 0.8": {"guidance_interval": (0.1, 0.8)},
    "guidance 0 to 0.5": {"guidance_interval": (0.0, 0.5)},
    "null every 2": {"null_every": 2},
    "null every 4": {"null_every": 4},
    "guidance 0 to 0.5, null every 2": {"guidance_interval": (0.0, 0.5), "null_every": 2},
    "float8": {},
    "float8, guidance 0 to 0.5": {"guidance_interval": (0.0, 0.5)},
}


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
def test_evaluations_are_counted_as_the_sampler_asks(method: str) -> None:
    intervals = [(0.0, 1.0), (0.1, 0.8), (0.0, 0.5), (0.33, 0.34)]
    for interval, every, steps in itertools.product(intervals, (1, 2, 5), (1, 7, 50)):
        sampling = SamplingConfig(
            method=method, num_steps=steps, guidance_interval=interval, null_every=every
        )
        steps_taken = sampling_steps(sampling)
        assert text_evaluations(sampling) == sum(len(step.times) for step in steps_taken)
        uses = [step.null_use(t) for step in steps_taken for t in step.times]
        counted = null_evaluations(sampling)
        if counted is None:
            assert set(uses) == {"new"}
        else:
            # A time on the edge of the interval may be rounded to either side of it.
            assert abs(counted - uses.count("new")) <= 2
    assert null_evaluations(SamplingConfig(method=method, guidance_scale=1.0)) == 0


@pytest.mark.parametrize("name", CASES)
def test_the_pace_of_each_mode_is_what_was_measured(name: str) -> None:
    sampling = SamplingConfig(**CASES[name])
    rate = sampling_rate(
        FULL,
        CATALOGUE.gpu("H200"),
        rows=64,
        num_frames=360,
        num_tokens=40,
        evaluations=text_evaluations(sampling),
        null_evaluations=null_evaluations(sampling),
        float8=name.startswith("float8"),
    )
    assert rate == pytest.approx(MEASURED[name]["clips_per_s"], rel=0.05)


def test_a_plan_reckons_with_the_modes_that_are_asked_for() -> None:
    def planned(**options: object):
        return make_plan(
            Request(network=FULL, model_name="1.0", gpus={"L4": 1}, **options), CATALOGUE
        ).to_mapping()

    exact, fast = planned(), planned(precision="float8", null_every=2, num_steps=25)
    assert set(fast) == set(exact)
    assert fast["clips_per_s"] > 2.5 * exact["clips_per_s"]
    assert "products in float8: render needs the same flags" in fast["reasons"][-1]
    assert planned(method="midpoint")["clips_per_s"] < 0.6 * exact["clips_per_s"]
    assert all("A10" not in row["gpu"] for row in fast["alternatives"])


def test_the_command_names_the_modes_as_render_does() -> None:
    own, rendered = ({o.name: o.opts for o in command.params} for command in (plan, render))
    modes = ("method", "num_steps", "guidance_scale", "guidance_interval", "null_every")
    for name in (*modes, "precision"):
        assert own[name] == rendered[name]
    flags = "--gpus H100:1 --model 1.0 --json --precision float8 --guidance-interval 0,0.5"
    result = CliRunner().invoke(plan, flags.split())
    assert result.exit_code == 0
    assert "guidance for t from 0.0 to 0.5" in json.loads(result.stdout)["reasons"][-1]


def test_a_mode_that_a_card_or_a_sampler_lacks_is_refused() -> None:
    def ask(**options: object) -> None:
        request = Request(network=FULL, model_name="1.0", **options)
        make_plan(request, CATALOGUE)

    with pytest.raises(ConfigError, match=r"A10 has compute capability 8.6; allowed: cards from"):
        ask(gpus={"A10": 1}, precision="float8")
    with pytest.raises(ConfigError, match=r"capability 7.5; allowed: cards from 8.0"):
        ask(gpus={"T4": 1}, precision="bfloat16")
    with pytest.raises(ConfigError, match="null_every is 0"):
        ask(gpus={"L4": 1}, null_every=0)
