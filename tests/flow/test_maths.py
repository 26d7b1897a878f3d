"""Path, guidance, solvers and loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from hymotion_ray.flow import flow_matching_loss
from hymotion_ray.flow.guidance import guide, needs_null
from hymotion_ray.flow.path import interpolate, noise, target
from hymotion_ray.flow.solvers import advance, solver_steps, stage_times


def test_noise_depends_on_seed_alone() -> None:
    torch.manual_seed(5)
    first = noise(7, 40)
    torch.randn(3)
    assert torch.equal(noise(7, 40), first)
    assert first.shape == (40, 201)
    assert not torch.equal(noise(8, 40), first)
    assert abs(float(first.std()) - 1) < 0.05
    assert noise(-1, 2).isfinite().all()
    assert noise(2**64 - 1, 2).isfinite().all()


def test_path_runs_straight_from_noise_to_data() -> None:
    start, data = torch.randn(2, 3, 5, 201)
    assert torch.equal(interpolate(start, data, torch.zeros(3)), start)
    assert torch.equal(interpolate(start, data, torch.ones(3)), data)
    t, dt = torch.tensor([0.1, 0.4, 0.8]), 0.125
    moved = interpolate(start, data, t) + dt * target(start, data)
    torch.testing.assert_close(moved, interpolate(start, data, t + dt))


def test_guidance_is_conditional_at_one_and_extrapolates_beyond() -> None:
    text, null = torch.randn(2, 2, 4, 201)
    both = torch.cat((text, null))
    torch.testing.assert_close(guide(both, 1.0), text)
    torch.testing.assert_close(guide(both, 3.0), text + 2 * (text - null))
    assert [needs_null(s) for s in (0.0, 1.0, 1.01)] == [False, False, True]


def integrate(method: str, num_steps: int) -> float:
    """Error at t = 1 of dx/dt = (1 + t) x from x = 1, in float64."""
    x = torch.ones(1, dtype=torch.float64)
    for step in solver_steps(method, num_steps):
        x = advance(lambda x, t: x * (1 + t), x, step)
    return abs(float(x) - math.exp(1.5))


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_solvers_converge_at_their_order(method: str, order: int) -> None:
    coarse, fine = integrate(method, 10), integrate(method, 20)
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.4)


def test_rk4_is_the_three_eighths_rule() -> None:
    asked = []

    def velocity(x: torch.Tensor, t: float) -> torch.Tensor:
        asked.append(t)
        return torch.tensor(float(len(asked) ** 2))

    (step,) = solver_steps("rk4", 1)
    x = advance(velocity, torch.tensor(0.0), step)
    assert asked == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert float(x) == pytest.approx((1 + 3 * 4 + 3 * 9 + 16) / 8)


@pytest.mark.parametrize(("method", "stages"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_times_are_float32_of_a_linspace(method: str, stages: int) -> None:
    steps = solver_steps(method, 50)
    grid = torch.linspace(0, 1, 51).tolist()
    assert [step.times[0] for step in steps] == grid[:-1]
    assert all(len(step.times) == stages for step in steps)
    times = stage_times(steps)
    # The last stage of a 3/8 step is the first of the next, so it is one time and not two.
    assert len(times) == {"euler": 50, "midpoint": 100, "rk4": 151}[method]
    assert times == sorted(times)
    assert torch.tensor(times, dtype=torch.float32).tolist() == times


def test_loss_is_a_mean_of_clip_means() -> None:
    pred, want = torch.randn(2, 3, 6, 201) * 2
    length = torch.tensor([6, 2, 1])
    clips = [F.smooth_l1_loss(pred[i, :n], want[i, :n]) for i, n in enumerate(length.tolist())]
    expected = torch.stack(clips).mean()
    torch.testing.assert_close(flow_matching_loss(pred, want, length), expected)
    pred[1, 2:], want[2, 1:] = torch.nan, torch.inf
    pred.requires_grad_()
    loss = flow_matching_loss(pred, want, length)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert torch.isfinite(pred.grad).all()


def test_loss_of_low_precision_is_summed_in_float32() -> None:
    pred, want = torch.randn(2, 2, 5, 201)
    length = torch.tensor([5, 3])
    low = flow_matching_loss(pred.bfloat16(), want, length)
    assert low.dtype == torch.float32
    assert torch.equal(low, flow_matching_loss(pred.bfloat16().float(), want, length))
