"""The command `doctor`: is the cluster fit for work? Thin; heavy imports inside."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from hymotion_ray.cli_options import Command, config_option, print_json, say


@click.command(cls=Command)
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option("--quick", is_flag=True, help="Only what each node says of itself.")
@click.option("--share", "shares", multiple=True, help="Folder that all nodes share; repeatable.")
@click.option("--store", "stores", multiple=True, help="Object-store URL to try; repeatable.")
@click.option("--port", "ports", type=int, multiple=True, help="Further port to try; repeatable.")
@click.option(
    "--transfer-mb", type=float, default=64.0, help="Sent between nodes to time it; 0: nothing."
)
@click.option("--timeout", "timeout_s", type=float, default=60.0, help="Seconds a node has.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    help="grades.field=value, such as grades.gpus=8, grades.gbit_s=25, grades.memory_gb=128.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def doctor(as_json: bool, assignments: tuple[str, ...], **options: Any) -> None:
    """Check every node of a cluster, and every pair of nodes.

    Versions, GPUs, memory, shared memory, disk, limits, clocks, names, ports in both directions,
    bandwidth, shared storage and an all-reduce whose sum is known. Exit codes: 0 all well; 1
    warnings; 3 something would break a job, or the cluster cannot be reached.
    """
    from hymotion_ray.config.doctor import DoctorConfig
    from hymotion_ray.config.fields import override
    from hymotion_ray.engine.doctor.job import run_doctor

    config = override(DoctorConfig(**options), assignments)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its warnings there
        report = run_doctor(config, say)
    if as_json:
        print_json(report.to_mapping())
    else:
        click.echo(report.words())
    sys.exit(report.exit_code)
