"""What a plan or a card's preset makes of a render job, and what the job says of it at its end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.plan_check import require_cluster
from hymotion_ray.engine.render.carried import carried_out, expected_of, warned
from hymotion_ray.engine.render.job import run_job
from hymotion_ray.engine.render.model_info import ModelInfo
from hymotion_ray.engine.render.placement import Placement, place
from hymotion_ray.engine.render.plan import prompt_rows
from hymotion_ray.errors import ClusterError, ConfigError, InputError
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.plan import Request, make_plan, parse_gpus


@pytest.fixture
def config(random_model: Path, tmp_path: Path) -> RenderConfig:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A person walks.#24#walk\n")
    return RenderConfig(
        prompts=(str(prompts),),
        model=str(random_model),
        out=str(tmp_path / "out"),
        num_steps=2,
        preview_clips=0,
        resources=ResourceConfig(num_samplers=1),
    )


@pytest.fixture
def model(config: RenderConfig) -> ModelInfo:
    return ModelInfo.read(config)


def write_plan(model: ModelInfo, path: Path, gpus: str = "A10:2", **settings: object) -> str:
    catalogue = load_catalogue()
    request = Request(
        network=model.config.network,
        model_name="own",
        has_encoder=False,
        gpus=parse_gpus(gpus, catalogue),
    )
    plan = make_plan(request, catalogue).to_mapping()
    plan["settings"] |= settings
    path.write_text(json.dumps(plan))
    return str(path)


def test_a_plan_settles_what_is_open_and_nothing_else(
    config: RenderConfig, model: ModelInfo, tmp_path: Path
) -> None:
    path = write_plan(model, tmp_path / "plan.json", **{"resources.encoder_gpus": 0.7})
    planned = dataclasses.replace(config, plan=path)
    found, plan, preset = carried_out(planned, model)
    assert (found.resources.rows, found.resources.encoder_gpus) == (64, 0.7)
    assert plan is not None
    assert preset is None
    own = dataclasses.replace(planned, resources=ResourceConfig(rows=3, encoder_gpus=0.5))
    assert carried_out(own, model)[0].resources == own.resources
    assert carried_out(config, model) == (config, None, None)


def test_a_plan_for_cards_that_are_not_there_stops_the_job(
    config: RenderConfig, model: ModelInfo, tmp_path: Path
) -> None:
    _, plan, _ = carried_out(
        dataclasses.replace(config, plan=write_plan(model, tmp_path / "plan.json")), model
    )
    assert plan is not None

    def cluster(num_gpus: float) -> ClusterInfo:
        return ClusterInfo(
            num_cpus=4, total_cpus=4, num_gpus=num_gpus, num_nodes=1, started_here=False
        )

    a10 = Card("NVIDIA A10", int(22.1 * 2**30))
    require_cluster(plan, cluster(2), [a10, a10])
    require_cluster(plan, cluster(2), [])  # nodes that do not tell their cards' names
    with pytest.raises(ClusterError, match="needs 2 x A10 and the cluster has 1 x A10"):
        require_cluster(plan, cluster(1), [a10])
    with pytest.raises(ClusterError, match="needs 2 GPUs and the cluster has 1"):
        require_cluster(plan, cluster(1), [])
    with pytest.raises(ClusterError, match="has no GPU"):
        require_cluster(plan, cluster(0), [])


def test_a_preset_caps_rows_and_warns_of_long_prompts(
    config: RenderConfig, model: ModelInfo
) -> None:
    small = dataclasses.replace(config, preset="card-6gb")
    found, _, preset = carried_out(small, model)
    assert preset is not None
    assert found.resources.rows == preset.rows
    said: list[str] = []
    Path(config.prompts[0]).write_text("".join(f"{'walk ' * n}\n" for n in (30, 31, 99)))
    rows = list(prompt_rows(config, 360, said.append))
    assert list(warned(rows, preset, said.append)) == rows
    assert said[0].startswith("2 prompts have more than 30 words; card-6gb")
    with pytest.raises(ConfigError, match="rows is 65 and card-6gb holds at most 64"):
        carried_out(dataclasses.replace(small, resources=ResourceConfig(rows=65)), model)
    with pytest.raises(ConfigError, match="both given"):
        carried_out(dataclasses.replace(small, plan="x.json"), model)
    with pytest.raises(InputError, match=r"x\.json cannot be read"):
        carried_out(dataclasses.replace(config, plan="x.json"), model)


@pytest.mark.ray
def test_a_job_says_what_it_expected_and_what_it_was(ray, config: RenderConfig) -> None:
    report = run_job(config, lambda line: None)
    assert report.exit_code == 0
    summary = json.loads((Path(config.out) / "summary.json").read_text())
    planned = summary["planned"]
    assert planned["source"] == "made by this run, for CPUs"
    for name in ("seconds", "memory_gib"):
        assert planned[name]["predicted"] > 0
        assert planned[name]["actual"] > 0
    assert "planned and actual" in report.words()


def test_a_run_on_a_gpu_expects_what_its_modes_and_its_encoder_leave(
    config: RenderConfig, model: ModelInfo
) -> None:
    full = dataclasses.replace(model.config, network=released_network("1.0"))
    cluster = ClusterInfo(num_cpus=8, total_cpus=8, num_gpus=1, num_nodes=1, started_here=False)
    alone = place(config.resources, cluster, [], encoder_is_large=False)
    card = Card("NVIDIA H200", int(139.8 * 2**30))
    grid = Grid.of_one(GridCell(rows=64, frames=360, tokens=48))

    def rate(placement: Placement = alone, precision: str = "auto", **sampling: object) -> float:
        asked = dataclasses.replace(config, precision=precision)
        informed = dataclasses.replace(
            model, config=full, sampling=SamplingConfig(**sampling), encoder_weights=8 * 10**9
        )
        found = expected_of(asked, informed, cluster, [card], placement, grid, [(360, 40, 640)], 1)
        assert found is not None
        assert found.start_s > 9
        return found.clips_per_s

    # As measured: benchmarks/results/h200-2026-12-01-approximate.json.
    exact = rate()
    assert exact == pytest.approx(12.63, rel=0.05)
    assert rate(precision="float8") == pytest.approx(16.78, rel=0.05)
    assert rate(guidance_interval=(0.0, 0.5)) == pytest.approx(16.2, rel=0.05)
    assert rate(null_every=2) == pytest.approx(16.42, rel=0.05)
    assert rate(method="midpoint", num_steps=25) == pytest.approx(12.66, rel=0.05)
    assert rate(guidance_scale=1.0) > 1.8 * exact
    shared = dataclasses.replace(alone, encoder_is_large=True, encoder_gpus=0.2)
    assert 0.95 * exact < rate(shared) < exact
