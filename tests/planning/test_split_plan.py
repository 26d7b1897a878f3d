"""Public layouts are plans that fit their cards and that `render` takes up."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hymotion_ray.cli import main
from hymotion_ray.config.fields import override
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.carried import parse_plan
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.layouts import PUBLIC_LAYOUTS, public_layout
from hymotion_ray.planning.memory import Memory
from hymotion_ray.planning.placement import MARGIN
from hymotion_ray.planning.plan import Request, parse_gpus, workload
from hymotion_ray.planning.split_plan import group_seconds, layout_plan, share_of

CATALOGUE = load_catalogue()


def plan_of(name: str) -> dict:
    layout = public_layout(name)
    request = Request(
        network=released_network(layout.model),
        model_name=layout.model,
        gpus=parse_gpus(layout.gpus, CATALOGUE),
    )
    return layout_plan(layout, request, CATALOGUE)


@pytest.mark.parametrize("name", [layout.name for layout in PUBLIC_LAYOUTS])
def test_every_layout_fits_its_cards_and_is_taken_up(name: str) -> None:
    document = plan_of(name)
    taken = [row["gib"]["total"] for row in document["memory"]]
    if "split" in document["settings"]:  # then every sampler is as large, the encoder's mate too
        taken = [sum(taken)]
    assert max(taken) <= MARGIN * document["memory"][0]["card_gib"] + 0.01
    assert document["clips_per_s"] > 0
    made = parse_plan(json.dumps(document), name, "render")
    config = RenderConfig(prompts=("p.txt",), model="m", out="o")
    config = override(config, made.assignments())
    split = public_layout(name).split
    assert config.split == split
    if split is not None:
        assert config.resources.rows == split.fitting_rows(config.resources.rows)


def test_all_pools_of_public_advice_are_there() -> None:
    names = {layout.name for layout in PUBLIC_LAYOUTS}
    assert names >= {
        "2xA100-40", "4xRTX3090", "8xA10", "2xA10", "4xA10", "2xRTX4090", "4xA100-80",
        "4xRTX3080-10G",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="layout is '8xA11'; did you mean '8xA10'"):
        public_layout("8xA11")


def test_a_share_is_of_what_the_way_shares_out() -> None:
    whole = Memory(weights=100, activations=40, key_value_cache=20, workspace=7, context=3)
    heads = share_of(whole, SplitConfig(way="heads", size=4))
    assert (heads.weights, heads.key_value_cache, heads.activations) == (25, 5, 40)
    rows = share_of(whole, SplitConfig(way="rows", size=2))
    assert (rows.weights, rows.activations) == (100, 20)


def test_more_cards_and_more_pieces_take_less_time() -> None:
    request = Request(
        network=released_network("1.0"), model_name="1.0", gpus=parse_gpus("A10:4", CATALOGUE)
    )
    gpu, work = CATALOGUE.gpu("A10"), workload(request)

    def seconds(text: str) -> float:
        return group_seconds(gpu, work, SplitConfig.parse(text), 32)

    assert seconds("rows:4") < seconds("rows:2")
    assert seconds("layers:2:8") < seconds("layers:2:2")
    assert seconds("rows:2") < seconds("heads:2"), "rows send velocities, heads every layer's sums"


def test_the_command_prints_a_layout() -> None:
    said = CliRunner().invoke(main, ["plan", "--layout", "8xa10", "--json"])
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    assert document["layout"]["advised_gb_a_card"] == "12-15"
    assert document["settings"]["split"]["way"] == "heads"
    words = CliRunner().invoke(main, ["plan", "--layout", "2xA100-40"])
    assert "publicly advised: half the model a card" in words.output
    refused = CliRunner().invoke(main, ["plan", "--layout", "8xA10", "--gpus", "A10:8"])
    assert refused.exit_code == 2
