r"""Render prompt files to motion files: the entry for `ray job submit`, with the flags of the CLI.

    ray job submit --address http://HEAD:8265 --working-dir . -- \
        python pipelines/render.py s3://bucket/prompts.jsonl --model /shared/model --out s3://bucket/out

Progress goes to the job's log, a line every few seconds. The exit code is that of `hymotion-ray
render`. Submitted again with the same --out, after whatever ended it, the job does what is left;
Ctrl-C, `ray job stop` and a lost cluster lose no finished clip. `--config FILE` takes the flags
from a file. Give --out and --model as places that every node sees.
"""

from __future__ import annotations

import sys

import click

from hymotion_ray.cli import render
from hymotion_ray.errors import HyMotionError


def main() -> None:
    """Run the command; errors meant for users end it without a traceback."""
    try:
        render()
    except HyMotionError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
