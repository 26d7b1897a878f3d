"""A checkpoint as the built-in model is shipped: weights in half precision, no optimizer.

python examples/tiny/make_asset.py RUN/checkpoints/step-00010000 OUT
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from hymotion_ray.formats.models.checkpoint import read_model, write_model


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(checkpoint: Path, out: Path) -> None:
    """Write CHECKPOINT to OUT in half precision."""
    model = read_model(checkpoint)
    half = {name: tensor.half() for name, tensor in model.network.items()}
    write_model(dataclasses.replace(model, network=half), out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    click.echo(f"wrote {out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
