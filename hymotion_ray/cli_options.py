"""What the commands share: config files, lists, and advice for the released tool's flags."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hymotion_ray.config.fields import nearest
from hymotion_ray.errors import MissingDependencyError

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended: 128 + SIGINT, as shells have it."""
OLD_FLAGS = {
    "--model_path": "--model FOLDER",
    "--input_text_dir": "the prompt files or folders themselves, as arguments",
    "--output_dir": "--out DIR",
    "--num_seeds": "--seeds K",
    "--cfg_scale": "--guidance G",
    "--validation_steps": "--steps N",
    "--device_ids": "--samplers N; Ray gives each its GPU, CUDA_VISIBLE_DEVICES hides some",
    "--disable_rewrite": "nothing: prompts are rewritten only with --rewriter-url",
    "--disable_duration_est": "nothing: lengths come from the rows, or --duration S",
    "--prompt_engineering_host": "--rewriter-url URL",
    "--prompt_engineering_model_path": "--rewriter-model NAME",
}
"""Flags of the released tool, and what to use here."""


class Command(click.Command):
    """A command that knows the released tool's flags, and advises; Ctrl-C and SIGTERM end it alike:
    in order, and with exit code 130.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; an old flag ends with the name of the new one."""
        for arg in args:
            flag = arg.split("=")[0]
            if flag in OLD_FLAGS:
                raise click.UsageError(
                    f"{flag} is a flag of the released tool; use {OLD_FLAGS[flag]}", ctx
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run; what a job does when interrupted, it does at SIGTERM too."""
        with _sigterm_as_ctrl_c():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                say("interrupted; what is done is safe, the same command goes on from there")
                ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Hand a first SIGTERM to whoever waits for Ctrl-C, and pass over further ones meanwhile.

    `engine.cluster.connect` keeps this up where Ray would take the signal for itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may have handlers
        return

    def end(_: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        handler = signal.getsignal(signal.SIGINT)
        # Of a shell's background process Ctrl-C is ignored; SIGTERM is not.
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def read_config_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make the values of a YAML or JSON file the defaults of the command's options.

    Keys are the long option names, dashes or underscores; an unknown key is an error that names the
    nearest. Lists stand for comma lists and for arguments.
    """
    if path is None:
        return
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise click.BadParameter(f"{path} holds {type(values).__name__}; allowed: a mapping")
    known = _names(ctx.command)
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise click.BadParameter(
                f"{path} has the unknown key {key!r}{nearest(name, list(known))}"
            )
        defaults[known[name]] = _as_text(value, ctx.command, known[name])
    ctx.default_map = {**defaults, **(ctx.default_map or {})}


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=read_config_file,
    help="YAML or JSON file with values for these options (long names); the command line wins.",
)
"""The option `--config` of every command."""


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports of a command: a package that is missing is said with the extra that has it."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(
            f"{error}. Install what this command needs: pip install 'hymotion-ray[{extra}]', or"
            " `make install` in a checkout"
        ) from error


def say(line: str) -> None:
    """Progress and warnings: never on stdout, which belongs to results."""
    click.echo(line, err=True)


def print_json(mapping: dict[str, Any]) -> None:
    """A result as one JSON document."""
    click.echo(json.dumps(mapping, indent=1, ensure_ascii=False))


def _names(command: click.Command) -> dict[str, str]:
    names: dict[str, str] = {}
    for parameter in command.params:
        if parameter.name is None or parameter.name == "config":
            continue
        names[parameter.name] = parameter.name
        for flag in parameter.opts:
            names[flag.lstrip("-").replace("-", "_")] = parameter.name
    return names


def _as_text(value: Any, command: click.Command, name: str) -> Any:
    parameter = next(p for p in command.params if p.name == name)
    if isinstance(value, list):
        return value if parameter.nargs == -1 else ",".join(str(v) for v in value)
    return value


def comma_list(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    """`npz,bvh` as ("npz", "bvh"), lower case, without repeats."""
    parts = [part.strip().lower().lstrip(".") for part in (text or "").split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def words_list(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    """`A100=3.2,T4=0.5` as its parts, as they are."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def seed_list(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    """`1,2` as (1, 2)."""
    if not text:
        return ()
    try:
        return tuple(int(part) for part in str(text).split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 1,2") from error


def number_pair(
    _: click.Context, __: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """`0.1,0.8` as (0.1, 0.8)."""
    if not text:
        return None
    try:
        first, last = map(float, str(text).split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not two numbers such as 0.1,0.8") from error
    return first, last


def render_config(options: dict[str, Any]) -> Any:
    """The `RenderConfig` of the render command's options."""
    from hymotion_ray.config.render import RenderConfig, ResourceConfig, RewriteConfig
    from hymotion_ray.config.split import SplitConfig
    from hymotion_ray.config.text import TextPlacement
    from hymotion_ray.errors import ConfigError

    values = dict(options)
    url, name, key = (values.pop(f"rewriter_{n}") for n in ("url", "model", "key_env"))
    if url and not name:
        raise ConfigError("--rewriter-url needs --rewriter-model, the name the endpoint knows")
    rewrite = RewriteConfig(endpoint=url, model=name, api_key_env=key) if url else None
    resources = ResourceConfig(
        **{
            n: values.pop(n)
            for n in ("num_samplers", "sampler_gpus", "encoder_gpus", "rows", "prices")
        }
    )
    text = TextPlacement(precision=values.pop("text_precision"))
    split = SplitConfig.parse(values["split"]) if values["split"] else None
    values |= {"split": split, "text": text, "rewrite": rewrite, "resources": resources}
    return RenderConfig(**values)
