r"""Evaluate motions, a dataset or a model: the entry for `ray job submit`, with the CLI's flags.

    ray job submit --address http://HEAD:8265 --working-dir . -- \
        python pipelines/evaluate.py /shared/run --reference /shared/dataset --out /shared/report

The exit code is that of `hymotion-ray evaluate`. Give PATH, --reference and --out as places that
every node sees; `--config FILE` takes the flags from a file.
"""

from __future__ import annotations

import sys

import click

from hymotion_ray.cli_evaluate import evaluate
from hymotion_ray.errors import HyMotionError


def main() -> None:
    """Run the command; errors meant for users end it without a traceback."""
    try:
        evaluate()
    except HyMotionError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
