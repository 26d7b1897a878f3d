import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from made_shards import small_dataset
from train_runs import debug_config

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.tune import Trial, choose, tune
from hymotion_ray.errors import ConfigError

from . import rank_checks

PLAIN = Trial("none", 25, 8, 0.1, 160.0, 1000, 1000)


def trial(hook: str, rows: int, clips_per_s: float) -> Trial:
    return PLAIN._replace(comm_hook=hook, rows=rows, clips_per_s=clips_per_s)  # type: ignore[arg-type]


def test_one_process_measures_rows_alone() -> None:
    config = ParallelConfig(gradient_checkpointing=True)
    found = tune(
        rank_checks.make_network,
        lambda rows: tuple(part[:rows] for part in rank_checks.make_batch(0)[0]),
        config,
        torch.device("cpu"),
        rows=(1, 4),
        num_steps=1,
    )
    assert [t.rows for t in found.trials] == [1, 4]
    assert all(t.comm_hook == "none" and t.sent_bytes == 0 for t in found.trials)
    assert found.trials[0].memory_bytes < found.trials[1].memory_bytes
    assert all(0 < t.step_s < 60 for t in found.trials)
    assert found.pick == max(found.trials, key=lambda t: t.clips_per_s)
    assert json.loads(json.dumps(found.to_mapping()))["pick"]["rows"] == found.pick.rows
    lines = found.table().splitlines()
    assert len(lines) == 5
    assert sum("<- pick" in line for line in lines) == 1
    assert f"--set micro_batch={found.pick.rows}" in lines[-1]


def test_the_fastest_exact_combination_is_picked() -> None:
    trials = [trial("none", 8, 100.0), trial("none", 16, 120.0), trial("fp16", 16, 125.0)]
    assert choose(trials).rows == 16
    assert choose(trials).comm_hook == "none"


def test_rounded_gradients_must_be_well_faster_and_powersgd_is_never_picked() -> None:
    trials = [trial("none", 8, 100.0), trial("fp16", 8, 110.0), trial("powersgd", 8, 500.0)]
    assert choose(trials).comm_hook == "fp16"


def test_no_combination_that_fits_is_an_error_with_advice() -> None:
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        choose([trial("none", 64, 0.0), trial("powersgd", 8, 10.0)])


@pytest.mark.ray
@pytest.mark.slow
def test_train_tune_measures_on_the_workers_of_a_run(ray: ModuleType, tmp_path: Path) -> None:
    from hymotion_ray.engine.train.tune_job import run_tuning

    settings = ("workers.num_workers=2", "parallel.powersgd_start=2")
    config = debug_config(small_dataset(tmp_path / "data"), tmp_path / "out", *settings)
    found = run_tuning(config, lambda line: None, rows=(1,))
    assert found.num_ranks == 2
    assert {t.comm_hook for t in found.trials} == {"none", "fp16", "powersgd"}
    assert all(t.sent_bytes > 0 and t.clips_per_s > 0 for t in found.trials)
    assert not (tmp_path / "out").exists()
