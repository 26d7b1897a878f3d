"""The command `serve`: an HTTP endpoint for motion. Thin; heavy imports inside."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from hymotion_ray.cli_options import Command, needs_extra, print_json, say


@click.command(cls=Command)
@click.option("--model", help="`tiny`, a model folder, or hf:OWNER/NAME@REVISION.")
@click.option(
    "--host", help="Address to listen on; 0.0.0.0: all, with --keys.  [default: 127.0.0.1]"
)
@click.option("--port", type=int, help="Port.  [default: 8000]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    help="YAML or JSON file of the endpoint: models, pools, limits (docs/serving.md).",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    help="section.field=value of the config, such as queue.exact=true; may be repeated.",
)
@click.option("--jobs", "jobs_folder", help="Folder or URL that keeps jobs and their results.")
@click.option(
    "--keys", "keys_file", help="YAML file of API keys; --host beyond this machine needs it."
)
@click.option("--llm", "llm_path", help="Folder of the Qwen3 model.")
@click.option("--clip", "clip_path", help="Folder of the CLIP text model.")
@click.option("--address", help="Ray cluster; without: RAY_ADDRESS, else this machine.")
@click.option("--plan", help="File of `plan --json` to carry out; what the config says wins.")
@click.option("--dry-run", is_flag=True, help="Check the config, print it as JSON, start nothing.")
@click.option(
    "--new-key",
    metavar="NAME",
    help="Print a new API key and its entry for the keys file, and end.",
)
def serve(
    plan: str | None, dry_run: bool, new_key: str | None, address: str | None, **options: Any
) -> None:
    """Serve a model over HTTP: POST /v1/motions, a page at /, the API at /docs.

    Runs until Ctrl-C or SIGTERM; what is waited for is finished first.
    """
    if new_key is not None:
        _print_key(new_key)
        return
    from hymotion_ray.engine.address import require_keys
    from hymotion_ray.planning.carried import read_plan

    config = serve_config(**options)
    require_keys(config.http)
    carried = None if plan is None else read_plan(plan, "render")
    if dry_run:
        from hymotion_ray.config.fields import to_mapping

        print_json(to_mapping(config))
        return
    with needs_extra("serve"):
        from hymotion_ray.engine.serve.server import run_server

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its warnings there
        run_server(config, say, address, carried)


def _print_key(name: str) -> None:
    """The key to hand out on stdout, once; what the keys file holds of it on stderr."""
    from hymotion_ray.engine.serve.keys import new_key

    key, digest = new_key()
    say(f"give this key to {name}; it is shown once. For the keys file:")
    say(f'  - {{name: {name}, sha256: "{digest}"}}')
    click.echo(key)


def serve_config(
    *,
    config_file: str | None,
    assignments: tuple[str, ...],
    model: str | None,
    host: str | None,
    port: int | None,
    jobs_folder: str | None,
    keys_file: str | None,
    llm_path: str | None,
    clip_path: str | None,
) -> Any:
    """The `ServeConfig` of a file with the flags over it."""
    from hymotion_ray.config.fields import from_mapping, override
    from hymotion_ray.config.serve import ServeConfig, ServedModel
    from hymotion_ray.errors import ConfigError

    config = from_mapping(ServeConfig, _read(config_file), config_file or "serve config")
    if model is not None:
        if len(config.models) > 1:
            raise ConfigError(f"--model names one model, but {config_file} serves several")
        config = dataclasses.replace(
            config, models=(dataclasses.replace(config.models[0], model=model, name=None),)
        )
    elif config_file is None:
        raise ConfigError("no model is named; pass --model tiny, --model FOLDER or --config FILE")
    folders: dict[str, Any] = {"llm_path": llm_path, "clip_path": clip_path}
    given = {name: value for name, value in folders.items() if value is not None}
    if given:
        models: list[ServedModel] = [
            dataclasses.replace(m, encoder=dataclasses.replace(m.encoder, **given))
            for m in config.models
        ]
        config = dataclasses.replace(config, models=tuple(models))
    http: dict[str, Any] = {"host": host, "port": port, "keys_file": keys_file}
    changed = {name: value for name, value in http.items() if value is not None}
    config = dataclasses.replace(config, http=dataclasses.replace(config.http, **changed))
    if jobs_folder is not None:
        jobs = dataclasses.replace(config.jobs, folder=jobs_folder)
        config = dataclasses.replace(config, jobs=jobs)
    return override(config, assignments)


def _read(config_file: str | None) -> dict[str, Any]:
    if config_file is None:
        return {}
    import yaml

    try:
        values = yaml.safe_load(Path(config_file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {config_file}: {error}") from error
    if isinstance(values, dict) and "applications" in values:
        # A Serve config file for a cluster: the endpoint's own part of it.
        values = values["applications"][0].get("args", {})
    if values is not None and not isinstance(values, dict):
        raise click.BadParameter(f"{config_file} holds {type(values).__name__}; allowed: a mapping")
    return values or {}
