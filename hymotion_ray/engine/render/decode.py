"""Stage: latents -> motions, and the choice among candidates. Wraps `hymotion_ray.motion`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch

from hymotion_ray.engine.stage import Chunk
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.flags import flags
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import Quality, measure, score

QUALITY_COLUMNS = ("skate", "float", "jitter", "facing")


@dataclass
class DecodeStage:
    """Every candidate of a chunk decoded; of each item the best one kept.

    In: tensor `latent` (sum of frames, 201), candidates of an item side by side. Out: of the kept
    ones, tensors `rot6d` (sum of frames, 22, 6), `transl` (sum of frames, 3) and `joints` (sum of
    frames, 52, 3); columns `noise_seed` and the quality numbers; `warnings` gains what
    `motion.flags` finds.
    """

    decoder: Decoder
    name: str = "decode"

    def setup(self) -> None:
        """Nothing: the decoder came with the stage."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """Decode the living items of a chunk."""
        alive, seeds, texts = chunk.alive, chunk.column("noise_seeds"), chunk.column("text")
        lengths = [chunk.column("num_frames")[i] for i in alive for _ in seeds[i]]
        latents = list(chunk.tensors["latent"].split(lengths))
        motions = iter(self.decoder.decode(latents, smooth=True))
        kept: dict[int, tuple[int, Motion, Quality]] = {}
        for i in alive:
            candidates = [(seed, next(motions)) for seed in seeds[i]]
            rated = [(seed, motion, measure(motion)) for seed, motion in candidates]
            backwards = "backward" in texts[i].lower()
            best = min(
                range(len(rated)),
                key=[score(q, may_go_backwards=backwards) for _, _, q in rated].__getitem__,
            )
            kept[i] = rated[best]
        return _with_kept(chunk, kept)


def _with_kept(chunk: Chunk, kept: dict[int, tuple[int, Motion, Quality]]) -> Chunk:
    num_items = chunk.items.num_rows
    columns: dict[str, pa.Array] = {
        "noise_seed": pa.array(
            [kept[i][0] if i in kept else None for i in range(num_items)], pa.int64()
        )
    }
    for name in QUALITY_COLUMNS:
        values = [getattr(kept[i][2], name) if i in kept else None for i in range(num_items)]
        columns[name] = pa.array(values, pa.float32())
    columns["warnings"] = pa.array(_warnings(chunk, kept), pa.string())
    return chunk.with_columns(columns).with_tensors(
        {
            "rot6d": torch.cat([motion.rot6d for _, motion, _ in kept.values()]),
            "transl": torch.cat([motion.transl for _, motion, _ in kept.values()]),
            "joints": torch.cat([motion.joints for _, motion, _ in kept.values()]),
        }
    )


def _warnings(chunk: Chunk, kept: dict[int, tuple[int, Motion, Quality]]) -> list[str | None]:
    """The rows' warnings, and what the kept motions show."""
    held = chunk.column("warnings")
    for i, (_, motion, _) in kept.items():
        held[i] = "; ".join(filter(None, (held[i], *flags(motion))))
    return held
