"""Turn motion collections into shards; an entry for `ray job submit`.

ray job submit --working-dir . -- python pipelines/build_dataset.py SRC... --out s3://bucket/dataset
The options are those of `hymotion-ray ingest`, and so are the exit codes.
"""

from __future__ import annotations

import sys

import click

from hymotion_ray.cli_ingest import ingest
from hymotion_ray.errors import HyMotionError


def main() -> None:
    """Run the command; errors meant for users end it without a traceback."""
    try:
        ingest()
    except HyMotionError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
