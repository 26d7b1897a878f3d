"""Plan files: read, refused, and set beside what a run was; presets of single cards."""

from __future__ import annotations

import json

import pytest

from hymotion_ray.config.releases import released_network
from hymotion_ray.errors import ClusterError, ConfigError
from hymotion_ray.planning.carried import PlanFile, parse_plan, words_beside
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB, sampling_memory
from hymotion_ray.planning.placement import MARGIN
from hymotion_ray.planning.plan import Request, make_plan, make_training_plan, parse_gpus
from hymotion_ray.planning.presets import CARD_GB, card_preset, parse_preset

CATALOGUE = load_catalogue()
FULL = released_network("1.0")


def document(gpus: str = "A10:4", train: bool = False) -> dict:
    request = Request(network=FULL, model_name="1.0", gpus=parse_gpus(gpus, CATALOGUE))
    if train:
        return make_training_plan(request, CATALOGUE)
    return make_plan(request, CATALOGUE).to_mapping()


def parsed(train: bool = False, **changes: object) -> PlanFile:
    text = json.dumps({**document(train=train), **changes})
    return parse_plan(text, "plan.json", "train" if train else "render")


def test_a_plan_comes_back_as_it_was_written() -> None:
    plan, made = parsed(), document()
    assert plan.gpus == {"A10": 4}
    assert plan.expected.clips_per_s == made["clips_per_s"]
    sampler = max(r["gib"]["total"] for r in made["memory"] if r["stage"] == "sample")
    assert plan.expected.memory_gib == pytest.approx(
        sampler - fitted().memory.context_gib, abs=0.02
    )
    clips = made["clips"]
    beside = plan.expected.beside(clips=clips, seconds=3600.0, memory_bytes=2 * GIB)
    assert beside["seconds"]["predicted"] == pytest.approx(3600 * made["hours"], rel=1e-3)
    assert beside["cost_usd"]["predicted"] == pytest.approx(made["cost"]["usd"], rel=1e-2)
    assert beside["cost_usd"]["actual"] == pytest.approx(plan.expected.usd_per_hour, rel=1e-3)
    assert beside["memory_gib"]["actual"] == 2.0
    assert "and 3600 s" in words_beside(beside)


def test_what_is_not_known_is_not_told() -> None:
    plan = parsed(cost={"usd": None, "machines": []})
    beside = plan.expected.beside(clips=0, seconds=1.0, memory_bytes=0)
    assert beside["cost_usd"] == {"predicted": None, "actual": None}
    assert "USD" not in words_beside(beside)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "schema 'list'"),
        ('{"schema": 1}', "schema 1; allowed: 2"),
        ('{"schema": 2}', "KeyError"),
        (json.dumps({**document(), "clips_per_s": 0}), "clips_per_s is 0"),
        (json.dumps({**document(), "gpus": [1]}), "cannot be read"),
        (json.dumps(document(train=True)), "one to train; allowed here: one to render"),
    ],
)
def test_what_is_no_plan_to_render_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_plan(text, "plan.json", "render")


def test_another_model_and_a_smaller_cluster_are_refused() -> None:
    plan = parsed()
    plan.require_model(FULL)
    with pytest.raises(ConfigError, match=r"feat_dim 1280.*the model is one of feat_dim 1024"):
        plan.require_model(released_network("lite"))
    plan.require_pool({"A10": 5, "T4": 1})
    with pytest.raises(ClusterError, match=r"needs 4 x A10 .* has 2 x A10; .*--gpus A10:2 "):
        plan.require_pool({"A10": 2})
    with pytest.raises(ClusterError, match=r"has no GPU; .*leave --plan out"):
        plan.require_pool({})


def test_a_training_plan_sets_the_switches() -> None:
    settings = parsed(train=True).settings
    assert settings["workers.num_workers"] == "4"
    assert settings["parallel.precision"] == "bfloat16"
    assert settings["micro_batch"] >= 1


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40"),
        ("NVIDIA A10", 22.1, "A10"),
        ("NVIDIA A10G", 22.1, "A10G"),
        ("NVIDIA L4", 22.0, "L4"),
        ("NVIDIA L40S", 44.4, "L40S"),
        ("NVIDIA GeForce RTX 3080", 9.8, "RTX3080-10G"),
        ("Tesla T4", 14.6, "T4"),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA GeForce GTX 1050", 3.9, None),
    ],
)
def test_cards_are_known_by_the_names_they_give_themselves(
    name: str, gib: float, kind: str | None
) -> None:
    found = CATALOGUE.kind_of(name, int(gib * GIB))
    assert (found.name if found else None) == kind


@pytest.mark.parametrize("model", ["1.0", "lite"])
@pytest.mark.parametrize("gb", CARD_GB)
def test_what_a_preset_allows_fits_its_card(gb: int, model: str) -> None:
    network = released_network(model)
    preset = card_preset(parse_preset(f"card-{gb}gb"), network)
    memory = sampling_memory(
        network,
        rows=preset.rows,
        num_frames=preset.max_frames,
        num_tokens=preset.max_tokens,
        window_bytes=preset.window_bytes,
    )
    assert memory.total <= MARGIN * preset.sampler_bytes <= 0.95 * 0.91 * gb * GIB
    assert preset.encoder == ("cpu" if gb < 20 else "gpu") or gb in (20, 24)
    assert preset.settings()["resources.rows"] == preset.rows


def test_presets_grow_with_the_card_and_unknown_ones_name_all() -> None:
    rows = [card_preset(gb, FULL, has_encoder=False).rows for gb in CARD_GB]
    assert rows == sorted(rows)
    with pytest.raises(ConfigError, match="card-6gb, card-8gb"):
        parse_preset("card-7gb")
    with pytest.raises(ConfigError, match=r"a card of 2 GB has about 1\.8 GiB, and one clip"):
        card_preset(2, FULL)
