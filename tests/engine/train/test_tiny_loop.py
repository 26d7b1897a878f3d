import dataclasses

import pytest
import torch

from hymotion_ray.config import ModelConfig, NetworkConfig
from hymotion_ray.config.tiny_training import TrainingConfig, tiny_training
from hymotion_ray.config.training import tiny_model
from hymotion_ray.engine.train.batches import Batches
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.engine.train.step import EagerStep, GraphStep
from hymotion_ray.engine.train.tiny_loop import Report, rate_factor, train
from hymotion_ray.errors import ConfigError
from hymotion_ray.model.init import initialise
from hymotion_ray.text.static import StaticEncoder

from .conftest import make_track

MODEL = ModelConfig(
    network=NetworkConfig(
        feat_dim=32,
        num_layers=3,
        num_heads=2,
        ctxt_input_dim=96,
        vtxt_input_dim=96,
        mask_mode="narrowband",
        time_factor=1000.0,
        apply_rope_to_single_branch=False,
        refiner_num_layers=1,
    )
)
MOVING = torch.ones(201, dtype=torch.bool)
SHORT = TrainingConfig(
    max_steps=60,
    frames_per_batch=320,
    frame_buckets=(32, 40),
    learning_rate=1e-2,
    warmup_steps=5,
    ema_decay=0.9,
    log_every=10,
)


def fresh_batches(encoder: StaticEncoder) -> Batches:
    tracks = [make_track("a", ("walking",)), make_track("b", ("turning",), turn=0.01)]
    return Batches(tracks, encoder, torch.device("cpu"), seed=0)


def test_the_loss_falls(encoder: StaticEncoder) -> None:
    reports: list[Report] = []
    train(MODEL, SHORT, fresh_batches(encoder), reports.append)
    assert [report.step for report in reports] == [10, 20, 30, 40, 50, 60]
    assert reports[-1].loss < 0.7 * reports[0].loss


def test_the_same_run_gives_the_same_bits(encoder: StaticEncoder) -> None:
    config = dataclasses.replace(SHORT, max_steps=3)
    first, second = (train(MODEL, config, fresh_batches(encoder)) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_new_network_predicts_zero_and_every_part_of_it_learns(batches: Batches) -> None:
    torch.manual_seed(0)
    model = FlowModel(MODEL, MOVING)
    initialise(model.network, 0)
    batch = batches.draw(8, 40, text_noise=0.0)
    out = model.network(
        batch.x, batch.context, batch.vector, torch.rand(8), batch.length, batch.context_length
    )
    assert (out == 0).all()
    trained = train(MODEL, dataclasses.replace(SHORT, max_steps=8), batches)
    torch.manual_seed(SHORT.seed)
    start = FlowModel(MODEL, MOVING)
    initialise(start.network, SHORT.seed)
    pairs = zip(trained.named_parameters(), start.parameters(), strict=True)
    assert [name for (name, a), b in pairs if torch.equal(a, b)] == []


def test_dropped_rows_do_not_see_their_text(batches: Batches) -> None:
    torch.manual_seed(0)
    model = FlowModel(MODEL, MOVING)
    batch = batches.draw(4, 40, text_noise=0.0)
    noise, t = torch.randn_like(batch.x), torch.rand(4)
    other = batch._replace(context=batch.context + 1, vector=batch.vector - 1)
    dropped, kept = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    assert torch.equal(model(*batch, noise, t, dropped), model(*other, noise, t, dropped))
    assert not torch.equal(model(*batch, noise, t, kept), model(*other, noise, t, kept))


def test_features_that_never_move_cost_nothing(batches: Batches) -> None:
    torch.manual_seed(0)
    model = FlowModel(MODEL, batches.std >= 1e-3)
    batch = batches.draw(4, 40, text_noise=0.0)
    noise, t, drop = torch.randn_like(batch.x), torch.rand(4), torch.zeros(4, dtype=torch.bool)
    before = model(*batch, noise, t, drop)
    final = model.network.final_layer.linear
    with torch.no_grad():
        final.bias[batches.std < 1e-3] += 7
    assert torch.equal(model(*batch, noise, t, drop), before)
    with torch.no_grad():
        final.bias[batches.std >= 1e-3] += 7
    assert not torch.equal(model(*batch, noise, t, drop), before)


def test_the_rate_rises_stays_and_falls() -> None:
    config = dataclasses.replace(SHORT, max_steps=100, warmup_steps=10, cooldown_steps=20)
    rates = [rate_factor(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert all(rate == 1 for rate in rates[9:81])
    assert rates[90] == pytest.approx(0.5)
    assert rates[100] == 0


def test_settings_outside_what_is_allowed_are_refused() -> None:
    for change in ({"cooldown_steps": 61}, {"frame_buckets": ()}, {"ema_decay": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            dataclasses.replace(SHORT, **change)


def test_the_built_in_preset_fits_the_package() -> None:
    config = tiny_model(96)
    num_weights = sum(p.numel() for p in FlowModel(config, MOVING).parameters())
    assert num_weights * 2 < 12e6  # 15 MB with the word vectors
    assert config.train_frames == 360
    assert tiny_training(100, "cpu").cuda_graphs is False


@pytest.mark.gpu
def test_a_replayed_step_equals_the_eager_one(encoder: StaticEncoder) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    batches = Batches([make_track("a", ("walking",))], encoder, device, seed=0)
    model = FlowModel(MODEL, MOVING).to(device)
    eager = EagerStep(model, device, "float32")
    replayed = GraphStep(EagerStep(model, device, "float32"))
    for num_frames in (40, 48, 40):
        batch = batches.draw(4, num_frames, text_noise=0.0)
        inputs = (
            *batch,
            batches.normal(*batch.x.shape),
            batches.uniform(4),
            batches.uniform(4) < 0.5,
        )
        expected = eager(*inputs).clone()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        torch.testing.assert_close(replayed(*inputs), expected)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient)
