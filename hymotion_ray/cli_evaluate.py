"""The command `evaluate`: what motions, a dataset or a model are worth. Thin; imports inside."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from hymotion_ray.cli_options import Command, config_option, print_json, say


@click.command(cls=Command)
@click.argument("path")
@click.option("--out", help="Folder or URL for report.json, report.html and each clip's numbers.")
@click.option(
    "--prompts",
    help="What a model renders and actions are judged by: CSV with prompt and action, or any"
    " prompt file.  [default: built in]",
)
@click.option("--seeds", "num_seeds", type=int, default=8, help="Clips a prompt of a model.")
@click.option("--steps", "num_steps", type=int, help="Solver steps.  [default: the model's]")
@click.option("--guidance", "guidance_scale", type=float, help="Guidance.  [default: the model's]")
@click.option("--reference", help="Real motions to compare with: a dataset, or a folder of clips.")
@click.option("--truth", help="Folder with each clip's true motion, by the same relative name.")
@click.option(
    "--split",
    type=click.Choice(["all", "train", "val", "test"]),
    default="all",
    help="Which clips of a dataset.",
)
@click.option("--embedder", help="Evaluator of embeddings: module:name, or a TorchScript .pt file.")
@click.option("--limit", type=int, help="Clips at most.")
@click.option(
    "--workers",
    "num_workers",
    type=int,
    help="Processes that measure; 0: this one, without Ray.  [default: one a CPU]",
)
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def evaluate(as_json: bool, **options: Any) -> None:
    """Measure motions, a dataset or a model.

    PATH is a folder or file of motions (npz, bvh, glb), a render's output, a dataset of shards, a
    training run, a model folder or `tiny`. Of a model, test prompts are rendered first. Clips are
    judged by how they move and, where their prompt says which, by whether they show its action.
    What cannot be measured is listed, and why.
    """
    from hymotion_ray.config.evaluate import EvaluateConfig
    from hymotion_ray.engine.evaluate.job import run_evaluate

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its warnings there
        report = run_evaluate(EvaluateConfig(**options), say)
    if as_json:
        print_json(report.to_mapping())
    else:
        click.echo(report.words())
    sys.exit(report.exit_code)
