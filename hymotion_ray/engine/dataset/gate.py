"""Stage: pieces -> pieces with quality numbers, or rejects. Wraps `hymotion_ray.motion.gates`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hymotion_ray.config.ingest import GateConfig
from hymotion_ray.engine.dataset.items import FitPiece, Piece, Rejected
from hymotion_ray.motion.gates import is_finite, judge, measure_clip


@dataclass(frozen=True)
class GateStage:
    """Judges pieces one by one; rejects of earlier stages pass through."""

    gates: GateConfig

    def __call__(self, items: Iterable[Piece | Rejected]) -> Iterator[FitPiece | Rejected]:
        """Fit pieces with their numbers, and rejects with their reasons."""
        for item in items:
            if isinstance(item, Rejected):
                yield item
                continue
            try:
                yield self._judge(item)
            except Exception as error:  # noqa: BLE001 - what no check foresaw is this clip's failure
                message = f"cannot be judged: {type(error).__name__}: {error}"
                name = item.row.clip_id
                yield Rejected(file=item.file, name=name, code="unusable", message=message)

    def _judge(self, piece: Piece) -> FitPiece | Rejected:
        motion, row = piece.motion, piece.row
        if not is_finite(motion.rot6d, motion.transl, motion.joints):
            return Rejected(
                file=piece.file,
                name=row.clip_id,
                code="not_finite",
                message="holds NaN or infinity",
                num_frames=motion.num_frames,
            )
        numbers = measure_clip(
            motion,
            scale=row.scale,
            fit_error=row.quality.get("fit_error") or 0.0,
            still_m_s=self.gates.still_m_s,
        )
        findings = judge(numbers, self.gates)
        if findings:
            first = findings[0]
            return Rejected(
                file=piece.file,
                name=row.clip_id,
                code=first.code,
                message="; ".join(f.message for f in findings),
                all_codes=tuple(dict.fromkeys(f.code for f in findings)),
                value=first.value,
                limit=first.limit,
                num_frames=motion.num_frames,
                motion=motion,
            )
        quality = {k: v for k, v in numbers.to_mapping().items() if k != "num_frames"}
        return FitPiece(
            file=piece.file, row=replace(row, quality=quality), motion=motion, numbers=numbers
        )
