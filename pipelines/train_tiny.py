"""Train the built-in `tiny` model: the command that made hymotion_ray/assets/tiny.

python pipelines/train_tiny.py --data CLIPS --captions examples/tiny/captions.csv --out DIR
CLIPS holds DeepMimic's humanoid3d_*.txt (github.com/xbpeng/DeepMimic, data/motions, MIT).
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import click

ASSETS = Path(__file__).resolve().parents[1] / "hymotion_ray" / "assets" / "tiny"

log = logging.getLogger("train_tiny")


@click.command()
@click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--captions", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New model folder.")
@click.option("--max-steps", default=30_000, show_default=True, type=click.IntRange(min=1))
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--set", "assignments", multiple=True, help="field=value of the training config.")
@click.option(
    "--text",
    default=ASSETS / "text",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the static word vectors; copied into the model folder.",
)
def main(
    data: Path,
    captions: Path,
    out: Path,
    max_steps: int,
    device: str,
    assignments: tuple[str, ...],
    text: Path,
) -> None:
    """Train from DeepMimic clips in --data with --captions, and write a model folder to --out."""
    import torch

    from hymotion_ray.config.fields import override
    from hymotion_ray.config.tiny_training import tiny_training
    from hymotion_ray.config.training import tiny_model
    from hymotion_ray.engine.train.batches import Batches
    from hymotion_ray.engine.train.clips import build_tracks
    from hymotion_ray.engine.train.tiny_loop import Report, train
    from hymotion_ray.formats.models.checkpoint import Checkpoint, write_model
    from hymotion_ray.motion.skeleton import generic_skeleton
    from hymotion_ray.text.static import StaticEncoder

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    config = override(tiny_training(max_steps, device), assignments)
    encoder = StaticEncoder(text)
    model_config = tiny_model(encoder.context_dim)
    tracks = build_tracks(data, captions, generic_skeleton())
    batches = Batches(tracks, encoder, torch.device(device), config.seed)
    log.info("%d tracks, config %s", len(tracks), dataclasses.asdict(config))

    def report(at: Report) -> None:
        log.info("step %d loss %.4f grad %.3f rate %.2e", *dataclasses.astuple(at))

    model = train(model_config, config, batches, report)
    half = {name: tensor.half().cpu() for name, tensor in model.network.state_dict().items()}
    checkpoint = Checkpoint(
        config=model_config,
        network=half,
        null_vtxt_feat=model.null_vtxt_feat.cpu(),
        null_ctxt_input=model.null_ctxt_input.cpu(),
        mean=batches.mean.cpu(),
        std=batches.std.cpu(),
        folder=text.parent,
    )
    write_model(checkpoint, out)
    log.info(
        "wrote %s: %.1f MB", out, sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 1e6
    )


if __name__ == "__main__":
    main()
