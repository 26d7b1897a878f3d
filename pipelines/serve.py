r"""Serve a model over HTTP on a Ray cluster: the entry for `ray job submit`, with the CLI's flags.

    ray job submit --address http://HEAD:8265 --working-dir . --no-wait -- \
        python pipelines/serve.py --model /shared/model --host 0.0.0.0 \
        --keys /shared/keys.yaml --jobs /shared/jobs

The endpoint lives as long as the job; `ray job stop` ends it after what is waited for. On
Kubernetes a RayService does better: see k8s/README.md. Exit codes are those of the command `serve`.
"""

from __future__ import annotations

import sys

import click

from hymotion_ray.cli_serve import serve
from hymotion_ray.errors import HyMotionError


def main() -> None:
    """Run the command; errors meant for users end it without a traceback."""
    try:
        serve()
    except HyMotionError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
