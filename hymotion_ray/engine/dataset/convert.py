"""Stage: clips -> pieces as training takes them: retargeted, 30 fps, cut, facing +Z, on the floor.

Wraps `formats.sources.to_motion` and `motion.features.canonicalise`. Ray-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hymotion_ray.config.ingest import FPS, MAX_FRAMES, MIN_FRAMES
from hymotion_ray.engine.dataset.items import Piece, ReadClip, Rejected
from hymotion_ray.errors import InputError
from hymotion_ray.formats.shard_table import ShardCaption, ShardClip, Value
from hymotion_ray.formats.sources import Caption, SourceClip
from hymotion_ray.formats.sources.fit import to_motion
from hymotion_ray.motion.features import canonicalise
from hymotion_ray.motion.gates import is_finite
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.retarget import FitReport
from hymotion_ray.motion.skeleton import PELVIS, Skeleton


@dataclass(frozen=True)
class ConvertStage:
    """Puts clips on the dataset's skeleton, and cuts them."""

    skeleton: Skeleton
    licence: str
    """Licence of clips whose source does not say."""

    def __call__(self, items: Iterable[ReadClip | Rejected]) -> Iterator[Piece | Rejected]:
        """Pieces of each clip; rejects of the reading stage pass through."""
        for item in items:
            if isinstance(item, Rejected):
                yield item
                continue
            try:
                yield from self._pieces(item)
            except InputError as error:
                code = getattr(error, "code", "unusable")
                yield Rejected(file=item.file, name=item.name, code=code, message=str(error))

    def _pieces(self, item: ReadClip) -> Iterator[Piece | Rejected]:
        clip = item.clip
        arrays = [a for a in (clip.positions, clip.rotations) if a is not None]
        if not is_finite(*arrays):
            message = "its joints hold NaN or infinity"
            yield Rejected(file=item.file, name=item.name, code="not_finite", message=message)
            return
        motion, fit = to_motion(clip, self.skeleton, FPS)
        for start, end, captions in _cuts(motion.num_frames, clip.captions):
            rot6d, transl = canonicalise(
                motion.rot6d[start:end].double(), motion.transl[start:end].double(), self.skeleton
            )
            piece = Motion.from_rotations(rot6d, transl, self.skeleton, FPS)
            row = self._row(item, piece, fit, start, captions)
            yield Piece(file=item.file, row=row, motion=piece)

    def _row(
        self,
        item: ReadClip,
        motion: Motion,
        fit: FitReport,
        start: int,
        captions: tuple[ShardCaption, ...],
    ) -> ShardClip:
        clip = item.clip
        known: dict[str, Value] = dict(clip.provenance)
        licence = str(known.pop("licence", "") or self.licence)
        source = str(known.pop("source", "") or item.file.partition("/")[0])
        known |= {"file": item.file, "start_frame": start, "max_fit_error": fit.max_error_m}
        return ShardClip(
            clip_id=f"{item.name}@{start}",
            split_group=str(known.pop("split_group", "") or item.name),
            source=source,
            licence=licence,
            fps_src=clip.fps,
            transl=np.ascontiguousarray(motion.transl.numpy()),
            rot6d=np.ascontiguousarray(motion.rot6d.numpy()),
            source_leg_length=fit.leg_length,
            scale=fit.scale,
            pelvis_offset=_pelvis_offset(clip),
            captions=captions,
            provenance=known,
            quality={"fit_error": fit.mean_error_m},
        )


def _pelvis_offset(clip: SourceClip) -> tuple[float, float, float] | None:
    if clip.body is None or clip.body.rest is None:
        return None
    x, y, z = (float(v) for v in clip.body.rest[PELVIS])
    return x, y, z


def _cuts(
    num_frames: int, captions: tuple[Caption, ...]
) -> Iterator[tuple[int, int, tuple[ShardCaption, ...]]]:
    """Windows (start, end) in frames of nearly even length, at most `MAX_FRAMES` each."""
    count = max(1, math.ceil(num_frames / MAX_FRAMES))
    bounds = [round(k * num_frames / count) for k in range(count + 1)]
    for start, end in pairwise(bounds):
        inside = []
        for caption in captions:
            first, last = caption.start * FPS - start, caption.end * FPS - start
            if min(last, end - start) - max(first, 0) >= MIN_FRAMES / 2:
                inside.append(
                    ShardCaption(
                        text=caption.text,
                        start=max(first, 0) / FPS,
                        end=min(last, end - start) / FPS,
                        mirrored=caption.mirrored,
                    )
                )
        yield start, end, tuple(inside)
