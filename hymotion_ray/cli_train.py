"""The command `train`: shards to checkpoints. Thin; heavy imports inside."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from hymotion_ray.cli_options import (
    Command,
    comma_list,
    config_option,
    needs_extra,
    print_json,
    say,
    seed_list,
)


@click.command(cls=Command)
@click.option("--data", required=True, help="Folder or URL of the shards that `ingest` wrote.")
@click.option("--out", required=True, help="Run folder; the same folder again resumes.")
@click.option(
    "--preset",
    type=click.Choice(["debug", "tiny", "lite", "full", "finetune"]),
    help="Model and defaults.  [default: tiny; finetune with --init]",
)
@click.option("--init", help="Model to start from: a release or converted folder, a checkpoint.")
@click.option("--workers", "num_workers", help="Processes: 4, or 2-8 for elastic.  [default: 1]")
@click.option("--max-steps", type=int, help="Optimizer steps; may grow later.")
@click.option("--global-batch", type=int, help="Clips a step over all workers.")
@click.option("--micro-batch", type=int, help="Clips that a worker computes at once.")
@click.option("--seed", type=int, help="Seed of weights and of everything drawn.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    help="section.field=value of the config, such as optimizer.learning_rate=1e-5; repeatable.",
)
@click.option("--llm", "llm_path", help="Folder of the Qwen3 model.")
@click.option("--clip", "clip_path", help="Folder of the CLIP text model.")
@click.option("--trackers", callback=comma_list, default="", help="wandb, mlflow, if installed.")
@click.option(
    "--profile",
    "profile_ranks",
    callback=seed_list,
    help="Ranks, such as 0,1, whose steps 3 to 5 are profiled, for TensorBoard.",
)
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option(
    "--plan",
    help="File of `plan --train --json` to carry out; options given beside it win.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print config and counts, stop.")
@click.option(
    "--tune",
    "tunes",
    is_flag=True,
    help="Measure communication hooks, bucket sizes and rows on the workers, print the pick, stop.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def train(plan: str | None, dry_run: bool, tunes: bool, as_json: bool, **options: Any) -> None:
    """Train or fine-tune a model on shards.

    Checkpoints below OUT/checkpoints are model folders that render and serve take as they are. The
    same command goes on from the newest one, to the bit on CPU.
    """
    from hymotion_ray.planning.carried import read_plan

    carried = None if plan is None else read_plan(plan, "train")
    config = train_config(options, carried.assignments() if carried else ())
    if dry_run:
        with needs_extra("train"):
            from hymotion_ray.engine.train.job import describe

        described = describe(config)
        print_json(described)
        sys.exit(described["exit_code"])
    if tunes:
        with needs_extra("train"):
            from hymotion_ray.engine.train.tune_job import run_tuning

        with contextlib.redirect_stdout(sys.stderr):
            tuning = run_tuning(config, say)
        if as_json:
            print_json(tuning.to_mapping())
        else:
            click.echo(tuning.table())
        return
    with needs_extra("train"):
        from hymotion_ray.engine.train.job import run_training

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its warnings there
        report = run_training(config, say, carried)
    if as_json:
        print_json(report.to_mapping())
    else:
        click.echo(report.words())
    sys.exit(report.exit_code)


def train_config(options: dict[str, Any], planned: Sequence[str] = ()) -> Any:
    """The `TrainConfig` of the command's options: a preset, `planned` settings, what was given."""
    import dataclasses

    from hymotion_ray.config.fields import override
    from hymotion_ray.config.training_presets import training_preset

    values = {name: value for name, value in options.items() if value is not None}
    assignments = list(values.pop("assignments", ()))
    num_workers = values.pop("num_workers", None)
    preset = values.pop("preset", "finetune" if "init" in values else "tiny")
    config = training_preset(preset, data=values.pop("data"), out=values.pop("out"))
    config = override(config, planned)
    config = dataclasses.replace(config, **values)
    if num_workers is not None:
        workers = dataclasses.replace(config.workers, num_workers=str(num_workers))
        config = dataclasses.replace(config, workers=workers)
    return override(config, assignments)
