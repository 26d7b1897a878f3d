"""The command line `hymotion-ray`: one thin command a verb, heavy imports inside the commands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from hymotion_ray import __version__
from hymotion_ray.cli_doctor import doctor
from hymotion_ray.cli_evaluate import evaluate
from hymotion_ray.cli_ingest import ingest
from hymotion_ray.cli_options import (
    Command,
    comma_list,
    config_option,
    number_pair,
    print_json,
    say,
    seed_list,
    words_list,
)
from hymotion_ray.cli_plan import plan
from hymotion_ray.cli_serve import serve
from hymotion_ray.cli_train import train
from hymotion_ray.errors import HyMotionError, InputError


class Group(click.Group):
    """Turns the project's errors into one line on stderr and their exit code."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors meant for users end it without a traceback."""
        try:
            return super().invoke(ctx)
        except HyMotionError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)


CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=Group, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="hymotion-ray")
def main() -> None:
    """Text to 3D human motion at scale, on Ray.

    Exit codes: 0 all done; 1 finished, but some items were rejected or failed; 2 bad arguments or
    input, nothing started; 3 the cluster or the model could not serve; 130 ended by Ctrl-C or
    SIGTERM.
    """


@main.command()
@click.argument("prompts", nargs=-1, required=True)
@click.option("--model", required=True, help="`tiny`, a model folder, or hf:OWNER/NAME@REVISION.")
@click.option("--out", required=True, help="Output folder or URL; the same folder again resumes.")
@click.option(
    "--seeds", "num_seeds", type=int, default=1, help="Clips a prompt, of seeds 0, 1, ..."
)
@click.option(
    "--seed-list", callback=seed_list, help="Seeds a prompt, such as 1,2; instead of --seeds."
)
@click.option("--duration", type=float, help="Seconds of a row that gives no length.  [default: 5]")
@click.option("--steps", "num_steps", type=int, help="Solver steps.  [default: the model's]")
@click.option("--guidance", "guidance_scale", type=float, help="Guidance.  [default: the model's]")
@click.option("--method", type=click.Choice(["euler", "midpoint", "rk4"]), help="Solver.")
@click.option(
    "--guidance-interval",
    metavar="FIRST,LAST",
    callback=number_pair,
    help="Approximate: guidance only for t from FIRST to LAST, within 0 to 1.",
)
@click.option(
    "--null-every",
    type=int,
    help="Approximate: guidance anew only in every so many-th step, kept between.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16", "float8"]),
    default="auto",
    help="Number format of the network; auto: the best the device has; float8: approximate.",
)
@click.option(
    "--noise",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="Who draws the noise; gpu: as the released Lite model, other motions on each GPU model.",
)
@click.option(
    "--exact",
    metavar="CELL",
    help="Compute all in one cell, ROWSxFRAMESxTOKENS, on one kind of device; what differs fails.",
)
@click.option(
    "--format", "formats", callback=comma_list, default="npz", help="Files a clip: npz,bvh,glb,..."
)
@click.option("--axis", type=click.Choice(["y-up", "z-up"]), default="y-up", help="Up axis of npz.")
@click.option(
    "--layout",
    type=click.Choice(["files", "shards"]),
    default="files",
    help="Files or Parquet shards.",
)
@click.option("--best-of", type=int, default=1, help="Candidates a clip; the best one is kept.")
@click.option("--strict", is_flag=True, help="Reject lengths outside the model's range.")
@click.option(
    "--id-policy",
    type=click.Choice(["error", "suffix", "skip"]),
    default="error",
    help="What happens to a second row with the same id.",
)
@click.option("--max-failures", help="Stop after this many failed items: a count, or 5%.")
@click.option("--preview-clips", type=int, default=12, help="Clips on index.html; 0: no page.")
@click.option("--llm", "llm_path", help="Folder of the Qwen3 model.")
@click.option("--clip", "clip_path", help="Folder of the CLIP text model.")
@click.option(
    "--text-precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16", "int8", "4bit"]),
    default="auto",
    help="Number format of Qwen3; int8 and 4bit take less memory and give other features.",
)
@click.option("--rewriter-url", help="OpenAI-compatible endpoint that rewrites prompts.")
@click.option("--rewriter-model", help="Model name at that endpoint.")
@click.option("--rewriter-key-env", default="OPENAI_API_KEY", help="Variable that holds its key.")
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option("--samplers", "num_samplers", type=int, help="Samplers.")
@click.option(
    "--split",
    metavar="WAY:SIZE",
    help="A sampler is SIZE processes, one a GPU: heads:2, rows:2 or layers:4[:PIECES].",
)
@click.option(
    "--offload",
    type=click.Choice(["none", "layers"]),
    default="none",
    help="layers: weights wait in host memory and come to the GPU block by block, for small cards.",
)
@click.option("--sampler-gpus", type=float, help="GPU share of a sampler, 0 to 1.")
@click.option("--encoder-gpus", type=float, help="GPU share of a text encoder, 0 to 1.")
@click.option("--rows", type=int, help="Clips at once in a sampler.")
@click.option(
    "--stall",
    "stall_s",
    type=float,
    default=1800,
    help="Seconds without a sign of life after which a process is replaced, or the job ends.",
)
@click.option(
    "--prices",
    callback=words_list,
    help="Prices of a GPU hour, such as A100=3.2,A10G=1: the summary then tells the cost.",
)
@click.option("--plan", help="File of `plan --json` to carry out; without: the job makes its own.")
@click.option("--preset", help="Keep to a single card's limits: card-6gb, card-8gb, ... card-80gb.")
@click.option("--dry-run", is_flag=True, help="Check everything, print stages and counts, stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def render(dry_run: bool, as_json: bool, **options: Any) -> None:
    """Render prompt files to motion files.

    PROMPTS are .txt, .json, .jsonl, .csv or .parquet files, folders, globs or URLs. Finished clips
    are kept: the same command again does only what is left, and more prompts, seeds or formats
    extend the folder.
    """
    from hymotion_ray.cli_options import render_config

    config = render_config(options)
    if dry_run:
        from hymotion_ray.engine.render.dry_run import describe

        described = describe(config, say)
        _print(described, as_json)
        sys.exit(described["exit_code"])
    from hymotion_ray.engine.render.job import run_job

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its warnings there
        report = run_job(config, say)
    _print(report.to_mapping(), as_json, report.words)
    sys.exit(report.exit_code)


@main.command("import")
@click.argument("source")
@click.option("--checkout", type=click.Path(), help="Your checkout of the released repository.")
@click.option("--llm", "llm_path", help="Folder of the Qwen3 model, remembered in the result.")
@click.option("--clip", "clip_path", help="Folder of the CLIP text model, remembered likewise.")
@click.option("--out", required=True, type=click.Path(), help="Folder to write.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def import_(
    source: str,
    checkout: str | None,
    llm_path: str | None,
    clip_path: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Turn a release folder, or hf:REPO@REVISION, into one self-contained model folder."""
    from hymotion_ray.formats.models.release import import_release

    report = import_release(source, out, checkout=checkout, llm_path=llm_path, clip_path=clip_path)
    _print(report.to_mapping(), as_json, report.words)


@main.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--axis", type=click.Choice(["y-up", "z-up"]), default="y-up", help="Up axis of npz.")
@config_option
def export(source: str, target: str, axis: Literal["y-up", "z-up"]) -> None:
    """Convert a motion file by suffix (npz, bvh, glb, ...), or a model to release layout."""
    from hymotion_ray.formats.motions import is_motion_file, load_motion, save_motion

    is_other_file = Path(source).is_file() and not source.lower().endswith(".safetensors")
    if is_motion_file(source) or is_other_file:
        save_motion(load_motion(source), target, axis=axis)
    else:
        from hymotion_ray.formats.models.release import export_release

        if is_motion_file(target):
            raise InputError(f"{source} is a model and {target} a motion file; give a new folder")
        export_release(source, target)
    click.echo(target)


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--out", required=True, type=click.Path(), help="page.html, .mp4 or .png")
@click.option("--limit", type=int, default=24, help="Clips at most.")
@config_option
def preview(sources: tuple[str, ...], out: str, limit: int) -> None:
    """Show motion files, or the clips of output folders, as a page, a film or a picture strip."""
    from hymotion_ray.formats.preview import write_preview

    write_preview(sources, out, limit=limit)
    click.echo(out)


main.add_command(doctor)
main.add_command(evaluate)
main.add_command(ingest)
main.add_command(serve)
main.add_command(plan)
main.add_command(train)


def _print(mapping: dict[str, Any], as_json: bool, words: Callable[[], str] | None = None) -> None:
    if as_json or words is None:
        print_json(mapping)
    else:
        click.echo(words())


if __name__ == "__main__":
    main()
