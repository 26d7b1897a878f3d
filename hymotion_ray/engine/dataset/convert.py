"""Stage: clips -> pieces as training takes them: retargeted, 30 fps, cut, facing +Z, on the floor.

Wraps `formats.sources.to_rotations` and `motion.canonical`. Ray-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hymotion_ray.config.ingest import FPS, MIN_FRAMES
from hymotion_ray.engine.dataset.items import Piece, ReadClip, Rejected, printable
from hymotion_ray.errors import InputError
from hymotion_ray.formats.shard_table import ShardCaption, ShardClip, Value
from hymotion_ray.formats.sources import Caption, SourceClip, to_rotations
from hymotion_ray.motion.canonical import Window, placed_clip, windows
from hymotion_ray.motion.gates import is_finite
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.retarget import FitReport
from hymotion_ray.motion.skeleton import PELVIS, Skeleton


@dataclass(frozen=True)
class ConvertStage:
    """Puts clips on the dataset's skeleton, and cuts them."""

    skeleton: Skeleton
    licence: str
    """Licence of clips whose source does not know it."""

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
            except Exception as error:  # noqa: BLE001 - what no check foresaw is this clip's failure
                message = f"cannot be converted: {type(error).__name__}: {error}"
                yield Rejected(file=item.file, name=item.name, code="unusable", message=message)

    def _pieces(self, item: ReadClip) -> Iterator[Piece | Rejected]:
        clip = item.clip
        arrays = [a for a in (clip.positions, clip.rotations) if a is not None]
        if not is_finite(*arrays):
            message = "its joints hold NaN or infinity"
            yield Rejected(file=item.file, name=item.name, code="not_finite", message=message)
            return
        rot6d, transl, fit = to_rotations(clip, self.skeleton, FPS)
        spans = [(caption.start, caption.end) for caption in clip.captions]
        covered = np.zeros(len(transl), dtype=bool)
        for window in windows(len(transl), spans, FPS):
            covered[window.start : window.stop] = True
            if window.num_frames < 1:
                yield _too_short(item, window)
                continue
            cut = slice(window.start, window.stop)
            piece = placed_clip(rot6d[cut], transl[cut], self.skeleton, float(FPS))
            said = [clip.captions[k] for k in window.spans]
            yield Piece(file=item.file, row=self._row(item, piece, fit, window, said), motion=piece)
        if (left := int((~covered).sum())) >= MIN_FRAMES:
            words = f"{left / FPS:.1f} of {len(transl) / FPS:.1f} s, of which no caption speaks"
            yield Rejected(
                file=item.file,
                name=item.name,
                code="uncaptioned",
                message=words,
                num_frames=left,
                is_motion=False,
            )

    def _row(
        self,
        item: ReadClip,
        motion: Motion,
        fit: FitReport,
        window: Window,
        said: Sequence[Caption],
    ) -> ShardClip:
        clip = item.clip
        known: dict[str, Value] = dict(clip.provenance)
        licence = printable(str(known.pop("licence", "") or "unknown"))
        if licence.startswith("unknown") and self.licence != "unknown":
            licence = self.licence
        source = printable(str(known.pop("source", "") or item.file.partition("/")[0]))
        known |= {
            "file": item.file,
            "start_s": round(window.start / FPS, 6),
            "max_fit_error_m": fit.max_error_m,
        }
        return ShardClip(
            clip_id=f"{item.name}@{window.start}-{window.stop}",
            split_group=printable(str(known.pop("split_group", "") or item.name)),
            source=source,
            licence=licence,
            fps_src=clip.fps,
            transl=np.ascontiguousarray(motion.transl.numpy()),
            rot6d=np.ascontiguousarray(motion.rot6d.numpy()),
            source_leg_length=fit.leg_length,
            scale=fit.scale,
            pelvis_offset=_pelvis_offset(clip),
            captions=tuple(_caption(caption, window) for caption in said),
            provenance={name: printable(value) for name, value in known.items()},
            quality={"fit_error": fit.mean_error_m},
        )


def _pelvis_offset(clip: SourceClip) -> tuple[float, float, float] | None:
    if clip.body is None or clip.body.rest is None:
        return None
    x, y, z = (float(v) for v in clip.body.rest[PELVIS])
    return x, y, z


def _caption(caption: Caption, window: Window) -> ShardCaption:
    """A caption in seconds of its window; one of several windows of a piece fills its own."""
    length, first = window.num_frames / FPS, window.start / FPS
    return ShardCaption(
        text=printable(caption.text),
        start=min(max(caption.start - first, 0.0), length),
        end=min(max(caption.end - first, 0.0), length),
        mirrored=caption.mirrored,
    )


def _too_short(item: ReadClip, window: Window) -> Rejected:
    name = f"{item.name}@{window.start}-{window.stop}"
    return Rejected(
        file=item.file, name=name, code="too_short", message="no frame at 30 fps", num_frames=0
    )
