"""The command `plan`: what a job needs, takes and costs. Thin; heavy imports inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hymotion_ray.cli_options import Command, number_pair, print_json
from hymotion_ray.errors import ConfigError, InputError


@click.command(cls=Command)
@click.option("--gpus", help="Cards as KIND:N,KIND:N, such as A10:4,A100-40:2.")
@click.option("--model", help="1.0, lite, tiny or a model folder.")
@click.option(
    "--layout",
    metavar="NAME",
    help="A pool in the way that public advice has it, such as 8xA10 or 2xA100-40; brings --gpus.",
)
@click.option("--clips", "num_clips", type=int, default=1000, help="Clips in all.")
@click.option("--duration", "duration_s", type=float, default=5.0, help="Seconds a clip.")
@click.option("--seeds", type=int, default=1, help="Clips of one prompt.")
@click.option("--steps", "num_steps", type=int, default=50, help="Solver steps.")
@click.option("--guidance", "guidance_scale", type=float, default=5.0, help="Guidance.")
@click.option(
    "--method", type=click.Choice(["euler", "midpoint", "rk4"]), default="euler", help="Solver."
)
@click.option(
    "--guidance-interval",
    metavar="FIRST,LAST",
    callback=number_pair,
    default="0,1",
    help="Approximate: guidance only for t from FIRST to LAST, within 0 to 1.",
)
@click.option(
    "--null-every",
    type=int,
    default=1,
    help="Approximate: guidance anew only in every so many-th step, kept between.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16", "float8"]),
    default="auto",
    help="Number format of the network; auto: the best each card has; float8: approximate.",
)
@click.option("--train", is_flag=True, help="Plan training on the clips, each once, not rendering.")
@click.option("--spot", is_flag=True, help="Reckon with spot machines.")
@click.option("--price", "prices", multiple=True, help="KIND=USD an hour of a card of your own.")
@click.option("--catalogue", type=click.Path(dir_okay=False), help="A catalogue of your own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def plan(
    gpus: str | None,
    model: str | None,
    layout: str | None,
    train: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Say which stage sits where, how long a job takes and what it costs.

    Figures are computed from shapes, from constants measured on one H200 and from public data; each
    says which. The catalogue of cards and prices is hymotion_ray/assets/catalogue.json.
    """
    from hymotion_ray.planning.catalogue import load_catalogue
    from hymotion_ray.planning.layouts import public_layout
    from hymotion_ray.planning.plan import Request, make_plan, make_training_plan, parse_gpus
    from hymotion_ray.planning.report import words
    from hymotion_ray.planning.split_plan import layout_plan

    advised = public_layout(layout) if layout else None
    if advised is not None:
        if gpus or train:
            raise ConfigError("layout is given with gpus or train; allowed: --layout without them")
        gpus, model = advised.gpus, model or advised.model
    if gpus is None or model is None:
        raise ConfigError("gpus or model is missing; allowed: --gpus with --model, or --layout")
    catalogue = load_catalogue(_text(options.pop("catalogue")))
    network, has_encoder = _network(model)
    request = Request(
        network=network,
        model_name=model,
        has_encoder=has_encoder,
        gpus=parse_gpus(gpus, catalogue),
        prices=_prices(options.pop("prices")),
        **options,
    )
    if train:
        document = make_training_plan(request, catalogue)
    elif advised is not None:
        document = layout_plan(advised, request, catalogue)
    else:
        document = make_plan(request, catalogue).to_mapping()
    if as_json:
        print_json(document)
    else:
        click.echo(words(document))


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"catalogue {path} cannot be read ({error})") from error


def _network(model: str) -> tuple[Any, bool]:
    """The network of a release name, of `tiny` or of a folder, and whether Qwen3 encodes for it."""
    from hymotion_ray.config.releases import SHAPES, released_network

    if model in SHAPES.values():
        return released_network(model), True
    from hymotion_ray.formats.models.checkpoint import read_model
    from hymotion_ray.formats.models.locate import model_folder

    config = read_model(model_folder(model)).config
    return config.network, config.text.kind != "static"


def _prices(given: tuple[str, ...]) -> dict[str, float]:
    prices = {}
    for price in given:
        kind, _, amount = price.partition("=")
        try:
            prices[kind] = float(amount)
        except ValueError as error:
            raise ConfigError(f"price is {price!r}; allowed: KIND=USD such as A10=0.86") from error
        if not (kind and 0 <= prices[kind] < 1e6):
            raise ConfigError(f"price is {price!r}; allowed: KIND=USD such as A10=0.86")
    return prices
