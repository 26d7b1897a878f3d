r"""Train or fine-tune a model on shards: the entry for `ray job submit`, with the flags of the CLI.

    ray job submit --address http://HEAD:8265 --working-dir . -- \
        python pipelines/train.py --data /shared/shards --out /shared/run --preset full --workers 8

Progress goes to the job's log, a line every few seconds. The exit code is that of `hymotion-ray
train`. Submitted again with the same --out, after whatever ended it, the job goes on from its
newest checkpoint; more --max-steps make it longer. `--config FILE` takes the flags from a file.
Give --data and --out as places that every node sees.
"""

from __future__ import annotations

import sys

import click

from hymotion_ray.cli_train import train
from hymotion_ray.errors import HyMotionError


def main() -> None:
    """Run the command; errors meant for users end it without a traceback."""
    try:
        train()
    except HyMotionError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
