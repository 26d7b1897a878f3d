"""On a GPU: a clip's bits are its own, whatever is sampled beside it, and graphs change nothing.

Full width and heads of the 1.0 release, three layers, random weights, bfloat16. Skipped without a
CUDA device of capability 8.0.
"""

from __future__ import annotations

import dataclasses
import random
import time

import pytest
import torch

from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.config.releases import TRAIN_FRAMES, released_network
from hymotion_ray.engine.serve.pace import StepClock
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.stepwise import CellRun, kind_of, prepare_clip
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.fused.choose import fused_or_plain

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="needs a CUDA device of capability 8.0",
)
STEPS = SamplingConfig(num_steps=4)
SHORTCUTS = SamplingConfig(num_steps=6, guidance_interval=(0.2, 0.9), null_every=2)
has_float8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
    reason="needs a CUDA device of capability 8.9",
)
NUM_PROMPTS = 40


@pytest.fixture(scope="module")
def network() -> MotionMMDiT:
    config = dataclasses.replace(released_network("1.0"), num_layers=3)
    generator = torch.Generator("cuda").manual_seed(0)
    network = MotionMMDiT(config, TRAIN_FRAMES).to("cuda").eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            parameter.normal_(std=0.02, generator=generator)
    return network.to(torch.bfloat16)


@pytest.fixture(scope="module")
def fused(network: MotionMMDiT):
    found = fused_or_plain(network)
    assert found is not network
    return found


@pytest.fixture(params=["bfloat16", pytest.param("float8", marks=has_float8)])
def approximate(request: pytest.FixtureRequest, network: MotionMMDiT, fused):
    """The fused network, and the one with motion's products in float8."""
    return fused if request.param == "bfloat16" else fused_or_plain(network, float8=True)


@pytest.fixture(scope="module")
def condition() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    length = torch.tensor([3 + 37 * p % 38 for p in range(NUM_PROMPTS)])
    return (
        torch.randn(NUM_PROMPTS, 40, 4096, generator=generator),
        torch.randn(NUM_PROMPTS, 1, 768, generator=generator),
        length,
    )


def make(network, rows: int = 16) -> Sampler:
    generator = torch.Generator().manual_seed(1)
    return Sampler(
        network,
        null_vector=torch.randn(1, 1, 768, generator=generator),
        null_context=torch.randn(1, 1, 4096, generator=generator),
        train_frames=TRAIN_FRAMES,
        grid=Grid(rows=rows, text_rows=32, token_cells=(40,)),
    )


ROWS = [Row(i % NUM_PROMPTS, 121 + (i * 7) % 30, i) for i in range(50)]


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
def test_order_mates_and_process_change_no_bit(fused, condition, method: str) -> None:
    sampling = dataclasses.replace(STEPS, method=method)
    want = make(fused).sample(*condition, ROWS, sampling)
    places = list(range(len(ROWS)))
    random.Random(0).shuffle(places)
    mixed = make(fused).sample(*condition, [ROWS[i] for i in places], sampling)
    assert all(torch.equal(want[i], mixed[k]) for k, i in enumerate(places))
    alone = make(fused).sample(*condition, [ROWS[33]], sampling)[0]
    assert torch.equal(alone, want[33])
    resumed = make(fused).sample(*condition, ROWS[20:], sampling)
    assert all(torch.equal(a, b) for a, b in zip(want[20:], resumed, strict=True))


def test_clips_that_join_and_leave_between_steps_have_the_same_bits(fused, condition) -> None:
    check_joining(fused, condition, STEPS)


def check_joining(network, condition, sampling: SamplingConfig) -> None:
    sampler = make(network)
    want = make(network).sample(*condition, ROWS[:6], sampling)
    context, vector, length = condition
    clips = [
        prepare_clip(
            sampler, row.prompt, context[row.prompt, : length[row.prompt]], vector[row.prompt, 0],
            row.num_frames, row.seed, sampling,
        )
        for row in ROWS[:6]
    ]  # fmt: skip
    run = CellRun(sampler, kind_of(clips[0], sampler))
    found = {}
    run.add(clips[:2])
    found.update((id(clip), x.cpu()) for clip, x in run.step())
    run.add(clips[2:])
    while run.clips:
        found.update((id(clip), x.cpu()) for clip, x in run.step())
    assert all(torch.equal(found[id(clip)], x) for clip, x in zip(clips, want, strict=True))


def test_a_captured_step_is_the_step(fused, condition) -> None:
    want = make(fused).sample(*condition, ROWS, STEPS)
    sampler = make(fused)
    sampler.velocity.network = Uncaptured(fused)
    found = sampler.sample(*condition, ROWS, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


class Uncaptured:
    """A network whose calls are not captured."""

    replays = False

    def __init__(self, network) -> None:
        self.motion_stream = network.motion_stream


def test_approximate_modes_keep_each_clip_to_itself(approximate, condition) -> None:
    want = make(approximate).sample(*condition, ROWS, SHORTCUTS)
    mixed = make(approximate).sample(*condition, ROWS[::-1], SHORTCUTS)
    assert all(torch.equal(a, b) for a, b in zip(want, mixed[::-1], strict=True))
    (alone,) = make(approximate).sample(*condition, [ROWS[33]], SHORTCUTS)
    assert torch.equal(alone, want[33])
    uncaptured = make(approximate)
    uncaptured.velocity.network = Uncaptured(approximate)
    found = uncaptured.sample(*condition, ROWS, SHORTCUTS)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    check_joining(approximate, condition, SHORTCUTS)


@has_float8
def test_float8_is_scaled_as_plain_torch_does(network) -> None:
    from hymotion_ray.model.float8 import quantize_rows
    from hymotion_ray.model.fused.quantize import quantized

    torch.manual_seed(0)
    seen, both = (torch.randn(2, 50, n, device="cuda").bfloat16() for n in (1280, 8960))
    values, scale = quantized(seen, both[..., 3840:])
    gelu = torch.nn.functional.gelu(both[..., 3840:].float(), approximate="tanh")
    want, want_scale = quantize_rows(torch.cat((seen.float(), gelu), -1).flatten(0, 1))
    torch.testing.assert_close(scale, want_scale)
    apart = (values.float() - want.float()).abs()
    assert (apart <= want.float().abs().clamp(min=2**-6) / 8).all()
    assert float((apart > 0).float().mean()) < 1e-3  # a last bit decides where halves go


@has_float8
def test_float8_is_near_bfloat16(network, fused, condition) -> None:
    want = torch.cat(make(fused).sample(*condition, ROWS[:16], STEPS))
    float8 = fused_or_plain(network, float8=True)
    got = torch.cat(make(float8).sample(*condition, ROWS[:16], STEPS))
    assert 1e-4 < float((got - want).norm() / want.norm()) < 0.1


def test_fused_is_no_further_from_float32_than_plain(network, fused, condition) -> None:
    rows = ROWS[:16]
    exact = make(network).in_float32().sample(*condition, rows, STEPS)
    whole = torch.cat(exact)

    def distance(found: list[torch.Tensor]) -> float:
        return float((torch.cat(found) - whole).norm() / whole.norm())

    plain = distance(make(network).sample(*condition, rows, STEPS))
    assert 0 < distance(make(fused).sample(*condition, rows, STEPS)) < 1.2 * plain


def test_a_host_is_one_step_ahead_and_steps_are_timed_where_they_run() -> None:
    clock = StepClock[int](torch.device("cuda"), time.monotonic)
    found = []
    for number in range(3):
        clock.begin()
        torch.cuda._sleep(20_000_000)
        found.append([step for step, seconds in clock.end(number) if seconds > 0])
    found.append([step for step, _ in clock.rest()])
    assert found == [[], [0], [1], [2]]
    assert clock.rest() == []
