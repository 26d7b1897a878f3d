"""Refitting the planner: known constants are found again, and half of the records stay unseen."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from hymotion_ray.config.releases import released_network
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB
from hymotion_ray.planning.parameters import count_parameters

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fit_planning")


def made_up(fitting: ModuleType, memory: object, speed: object) -> dict:
    """Records as they would be measured if these constants were true."""
    bench = importlib.import_module("bench_memory")
    records = []
    for model in ("1.0", "lite"):
        for precision in ("bfloat16", "float32"):
            for shape in bench.sampling_shapes(model, precision):
                item = 2 if precision == "bfloat16" else 4
                weights = item * count_parameters(released_network(model))
                record = {
                    "kind": "sampling",
                    "half": ("fit", "check")[len(records) % 2],
                    "inputs": dataclasses.asdict(shape),
                    "measured": {"weights": weights, "context": int(0.7 * GIB), "total": 0},
                }
                record["measured"]["total"] = fitting._predicted(record, False, memory)
                record["measured"]["seconds"] = fitting._seconds(record, False, speed)
                record["measured"]["clips_per_s"] = shape.rows / record["measured"]["seconds"]
                records.append(record)
    return {"tiny": False, "records": records}


def test_known_constants_are_found_again(fitting: ModuleType) -> None:
    true = dataclasses.replace(
        fitted().memory, context_gib=0.7, workspace_gib=0.2, motion_widths=26.0, row_copies=0.2
    )
    fast = dataclasses.replace(fitted().speed, bytes_a_flop=0.006, launch_s=0.004, text_factor=1.4)
    document = made_up(fitting, true, fast)
    assert len(document["records"]) >= 30
    found = fitting.fit(document, "made up")
    assert found.memory.context_gib == pytest.approx(0.7, rel=1e-3)
    for record in document["records"]:
        if record["half"] == "check":
            assert abs(fitting._sampling_error(record, False, found.memory)) < 0.03
            assert abs(fitting._time_error(record, False, found.speed)) < 0.05
    table = fitting.report(document, found)
    assert "| memory of sampling, **checked on** | 19 |" in table


def test_a_trial_of_tiny_networks_is_never_written(fitting: ModuleType, tmp_path: Path) -> None:
    from click.testing import CliRunner

    document = made_up(fitting, fitted().memory, fitted().speed) | {"tiny": True}
    results = tmp_path / "results.json"
    before = fitting.ASSET.read_bytes()
    results.write_text(json.dumps({**document, "records": []}))
    result = CliRunner().invoke(fitting.main, [str(results), "--write"])
    assert result.exit_code == 1
    assert "nothing written" in result.output
    assert fitting.ASSET.read_bytes() == before
