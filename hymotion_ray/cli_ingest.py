"""The command `ingest`: motion collections to shards. Thin; heavy imports inside."""

from __future__ import annotations

import sys
from typing import Any

import click

from hymotion_ray.cli_options import Command, config_option, print_json, say


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", required=True, help="Output folder or URL; the same folder again resumes.")
@click.option("--captions", help="Captions for the files of SRC: CSV, HumanML3D texts or BABEL.")
@click.option("--chunk-keys", help="YAML or JSON file that names the fields of .pt chunk files.")
@click.option("--licence", default="unknown", help="Licence of clips whose source does not say.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    help="section.field=value of the config, such as gates.max_skate=0.3; may be repeated.",
)
@click.option("--readers", "num_readers", type=int, help="Reader processes.  [default: one a CPU]")
@click.option("--report-clips", type=int, default=12, help="Clips shown as pictures; 0: none.")
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option("--dry-run", is_flag=True, help="List and check everything, print counts, stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def ingest(dry_run: bool, as_json: bool, **options: Any) -> None:
    """Turn motion collections into shards to train on.

    SOURCES are files, folders, globs or URLs: AMASS, HumanML3D, BABEL, BVH, ASF/AMC, GLB and more,
    zip archives of them too. Files that were read are kept: the same command again reads only what
    is new, and more sources extend the folder. What is left out, and why, stands in rejects/ and on
    report.html.
    """
    config = ingest_config(options)
    if dry_run:
        from hymotion_ray.engine.dataset.dry_run import describe

        described = describe(config, say)
        print_json(described)
        sys.exit(described["exit_code"])
    from hymotion_ray.engine.dataset.job import run_ingest

    report = run_ingest(config, say)
    if as_json:
        print_json(report.to_mapping())
    else:
        click.echo(report.words())
    sys.exit(report.exit_code)


def ingest_config(options: dict[str, Any]) -> Any:
    """The `IngestConfig` of the command's options."""
    from hymotion_ray.config.fields import override
    from hymotion_ray.config.ingest import IngestConfig, WorkConfig

    values = dict(options)
    assignments = values.pop("assignments")
    work = WorkConfig(num_readers=values.pop("num_readers"))
    return override(IngestConfig(**values, work=work), assignments)
