"""Plans: where stages go, what is refused, what it costs, and the command."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

from hymotion_ray.cli import main
from hymotion_ray.config.releases import released_network
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.memory import GIB
from hymotion_ray.planning.placement import MARGIN
from hymotion_ray.planning.plan import Request, make_plan, make_training_plan, parse_gpus

CATALOGUE = load_catalogue()


def request(gpus: str, model: str = "1.0", **values) -> Request:
    return Request(
        network=released_network(model),
        model_name=model,
        gpus=parse_gpus(gpus, CATALOGUE),
        **values,
    )


def plan(gpus: str, model: str = "1.0", **values) -> dict:
    return make_plan(request(gpus, model, **values), CATALOGUE).to_mapping()


@pytest.mark.parametrize(
    "gpus", ["A10", "A10:4,A100-40:2", "RTX3080-10G:4", "L4:2", "T4", "H200:2", "A100-80:8"]
)
def test_what_shares_a_card_fits_it(gpus: str) -> None:
    best = make_plan(request(gpus), CATALOGUE)
    for arrangement in (best.arrangement, *best.others):
        for samplers in arrangement.samplers:
            taken = samplers.memory.total
            if samplers.share < 1:
                taken += arrangement.encoder_memory.total
            assert taken <= MARGIN * samplers.gpu.usable_gib * GIB


def test_the_large_encoder_sits_where_it_costs_least() -> None:
    placement = plan("A10:4,A100-40:2")["placement"]
    assert placement[0]["stage"] == "encode"
    assert placement[0]["gpu"] == "A100-40"
    assert sum(row["number"] for row in placement if row["stage"] == "sample") == 6


def test_exact_encoders_come_before_quantised_ones() -> None:
    small = plan("RTX3080-10G:4")
    assert small["placement"][0]["gpu"] == "CPU"
    assert small["settings"]["resources.encoder_gpus"] == 0.0
    assert any("18 GiB" in reason for reason in small["reasons"])


def test_more_cards_more_clips_fewer_hours_and_costs_add_up() -> None:
    one, four = plan("A100-40", num_clips=10_000), plan("A100-40:4", num_clips=10_000)
    assert four["clips_per_s"] > 3.9 * one["clips_per_s"]
    assert four["hours"] < one["hours"] / 3
    (machine,) = four["cost"]["machines"]
    usd = machine["number"] * machine["usd_per_hour"] * four["hours"]
    assert four["cost"]["usd"] == pytest.approx(usd, rel=1e-3)
    assert four["cost"]["usd_per_1000_clips"] == pytest.approx(four["cost"]["usd"] / 10, rel=1e-3)


def test_retired_machines_are_not_offered_and_spot_is_cheaper() -> None:
    full, spot = plan("V100"), plan("V100", spot=True)
    assert full["cost"]["machines"][0]["machine"] == "p3.2xlarge"
    assert spot["cost"]["usd"] < full["cost"]["usd"]
    assert all(not a["machine"].startswith("NC6s") for a in full["alternatives"])


def test_alternatives_answer_which_card_is_cheaper_by_clip() -> None:
    rows = plan("A10")["alternatives"]
    prices = [row["usd_per_1000_clips"] for row in rows]
    assert prices == sorted(prices)
    assert {"1 x A10", "1 x A100-40"} <= {row["gpu"] for row in rows}
    (said,) = [reason for reason in plan("A10")["reasons"] if "cheapest machine of" in reason]
    cheapest = min(row["usd_per_1000_clips"] for row in rows if row["gpu"].endswith(" A100-40"))
    assert f"A100-40 {cheapest:g}" in said


def test_a_card_without_a_price_says_so_and_takes_one() -> None:
    assert plan("H200")["cost"]["usd"] is None
    assert "--price H200=USD" in plan("H200")["cost"]["missing"]
    assert plan("H200", prices={"h200": 4.0})["cost"]["usd"] > 0


def test_the_impossible_is_refused_with_the_nearest_possible() -> None:
    path = Path(__file__).parents[2] / "hymotion_ray/assets/catalogue.json"
    data = json.loads(path.read_text())
    data["gpus"].append({**data["gpus"][0], "name": "Small", "memory_gb": 2, "usable_gib": 1.9})
    catalogue = load_catalogue(json.dumps(data))
    small = Request(network=released_network("1.0"), model_name="1.0", gpus={"Small": 2})
    with pytest.raises(ConfigError, match=r"takes \d\.\d GiB.*Small, has 1\.9.*--model lite"):
        make_plan(small, catalogue)
    data["gpus"][-1]["usable_gib"] = 3.3
    larger = load_catalogue(json.dumps(data))
    with pytest.raises(
        ConfigError, match=r"allowed: render --offload layers --rows 1 on this card"
    ):
        make_plan(small, larger)
    with pytest.raises(ConfigError, match=r"Small has 1\.9 GiB"):
        make_training_plan(small, catalogue)


def test_training_takes_the_switches_that_fit() -> None:
    one = make_training_plan(request("T4"), CATALOGUE)
    assert "LoRA" in one["placement"][0]["switches"]
    assert one["settings"]["parallel.precision"] == "float16"  # a T4 has no bf16
    many = make_training_plan(request("A10:8"), CATALOGUE)
    assert "zero" in many["placement"][0]["switches"]
    assert make_training_plan(request("H100"), CATALOGUE)["placement"][0]["switches"] == "ddp"
    for row in (*one["memory"], *many["memory"]):
        assert row["gib"]["total"] <= row["planned_gib"]


def test_the_command_prints_json_and_words() -> None:
    arguments = ["plan", "--gpus", "a10:2", "--model", "lite", "--clips", "500"]
    found = CliRunner().invoke(main, [*arguments, "--json"])
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert {"memory", "placement", "clips_per_s", "hours", "cost"} <= set(document)
    words = CliRunner().invoke(main, arguments).stdout
    assert "2 x A10, 500 clips" in words
    assert f"{document['clips_per_s']} clips/s" in words
    tiny = CliRunner().invoke(main, ["plan", "--gpus", "A10", "--model", "tiny", "--json"])
    assert [row["stage"] for row in json.loads(tiny.stdout)["placement"]] == ["sample"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--gpus", "A11:1"], "GPU kind is 'A11'; allowed: T4,"),
        (["--gpus", "A10:0"], "A10:4,A100-40:2"),
        (["--gpus", ","], "KIND:N,KIND:N"),
        (["--clips", "0"], "clips is 0; allowed: at least 1"),
        (["--duration", "60"], "at most 12 seconds"),
        (["--price", "A10=cheap"], "KIND=USD"),
        (["--model", "2.0"], "2.0"),
        (["--catalogue", "/nowhere.json"], "/nowhere.json cannot be read"),
    ],
)
def test_bad_arguments_are_refused(change: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["plan", "--gpus", "A10", "--model", "1.0", *change])
    assert result.exit_code == 2
    assert words in result.output


def test_the_page_says_what_the_planner_says() -> None:
    folder = Path(__file__).parents[2]
    made = runpy.run_path(str(folder / "benchmarks" / "make_cards_page.py"))["page"](CATALOGUE)
    assert (folder / "docs" / "which-cards.md").read_text("utf-8") == made


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": 2}'])
def test_a_damaged_catalogue_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="catalogue"):
        load_catalogue(text)
