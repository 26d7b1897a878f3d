"""Converting: pieces by caption, in the canonical frame, with what is known of their source."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from folder_reader import made_clip

from hymotion_ray.config.ingest import GateConfig
from hymotion_ray.engine.dataset.convert import ConvertStage
from hymotion_ray.engine.dataset.gate import GateStage
from hymotion_ray.engine.dataset.items import FitPiece, Piece, ReadClip, Rejected
from hymotion_ray.formats.shard_table import to_table
from hymotion_ray.formats.sources import Caption, SourceClip
from hymotion_ray.motion.skeleton import generic_skeleton

SKELETON = generic_skeleton()


def long_clip(num_frames: int, *captions: Caption, **changes) -> SourceClip:
    """A clip of a chosen length, by going back and forth through a synthetic one."""
    clip = made_clip(1, "f")
    steps = np.arange(num_frames) % (2 * clip.num_frames - 2)
    frames = np.where(steps < clip.num_frames, steps, 2 * clip.num_frames - 2 - steps)
    body = dataclasses.replace(
        clip.body, rotations=clip.body.rotations[frames], pelvis=clip.body.pelvis[frames]
    )
    return dataclasses.replace(
        clip, positions=clip.positions[frames], body=body, captions=captions, **changes
    )


def pieces(clip: SourceClip, licence: str = "unknown") -> list[Piece | Rejected]:
    item = ReadClip(file="moves/f", name="moves/f#1", clip=clip)
    return list(ConvertStage(SKELETON, licence)([item]))


def test_a_take_without_captions_becomes_even_windows():
    found = pieces(long_clip(800))
    assert [p.row.num_frames for p in found] == [267, 266, 267]
    assert [p.row.clip_id for p in found] == [
        "moves/f#1@0-267",
        "moves/f#1@267-533",
        "moves/f#1@533-800",
    ]
    assert {p.row.split_group for p in found} == {"moves/f#1"}
    assert [p.row.provenance["start_s"] for p in found] == [0.0, 8.9, pytest.approx(533 / 30)]


def test_pieces_are_cut_at_captions_and_what_no_caption_tells_is_counted():
    said = [Caption(text="waves", start=1, end=3), Caption(text="bows", start=5, end=6.5)]
    *found, left = pieces(long_clip(300, *said, Caption(text="winkt", start=1, end=3)))
    assert [(p.row.num_frames, [c.text for c in p.row.captions]) for p in found] == [
        (60, ["waves", "winkt"]),
        (45, ["bows"]),
    ]
    assert [(c.start, c.end) for c in found[1].row.captions] == [(0.0, 1.5)]
    assert isinstance(left, Rejected)
    assert (left.code, left.num_frames, left.is_motion) == ("uncaptioned", 195, False)


def test_a_long_caption_fills_each_of_its_windows():
    found = pieces(long_clip(500, Caption(text="dances", end=500 / 30, mirrored=True)))
    assert [p.row.num_frames for p in found] == [250, 250]
    for piece in found:
        (caption,) = piece.row.captions
        assert (caption.start, caption.mirrored) == (0.0, True)
        assert caption.end == pytest.approx(250 / 30)


def test_every_piece_starts_at_the_origin_facing_forwards_on_the_floor():
    for piece in pieces(long_clip(800)):
        np.testing.assert_allclose(piece.row.transl[0, [0, 2]], 0, atol=1e-6)
        assert piece.motion.fps == 30
        assert np.array_equal(piece.row.rot6d, piece.motion.rot6d.numpy())


def test_a_rate_is_resampled_by_time_and_kept_in_the_row():
    (piece,) = pieces(long_clip(360, fps=120.0))
    assert piece.row.num_frames == 90
    assert piece.row.fps_src == 120.0


def test_a_source_without_a_licence_gets_the_runs():
    clip = long_clip(60, provenance={"licence": "unknown; ask", "source": "S", "unit_m": 0.01})
    assert pieces(clip)[0].row.licence == "unknown; ask"
    (piece,) = pieces(clip, "CC-BY-4.0")
    assert piece.row.licence == "CC-BY-4.0"
    assert piece.row.source == "S"
    assert piece.row.provenance["unit_m"] == 0.01
    known = long_clip(60, provenance={"licence": "MIT"})
    assert pieces(known, "CC-BY-4.0")[0].row.licence == "MIT"


def test_a_group_that_the_source_knows_is_kept():
    clip = long_clip(60, provenance={"split_group": "subject 7"})
    assert pieces(clip)[0].row.split_group == "subject 7"


def test_joints_alone_and_numbers_that_are_not_finite_are_rejected_with_reasons():
    clip = dataclasses.replace(long_clip(60), body=None)
    (rejected,) = pieces(clip)
    assert rejected.code == "positions_only"
    positions = long_clip(60).positions.copy()
    positions[5, 2, 1] = np.inf
    (rejected,) = pieces(dataclasses.replace(long_clip(60), positions=positions))
    assert rejected.code == "not_finite"


def test_a_caption_after_the_end_leaves_no_piece_but_a_reason():
    found = pieces(long_clip(60, Caption(text="late", start=5, end=6)))
    assert [(r.code, r.num_frames) for r in found] == [("too_short", 0), ("uncaptioned", 60)]


def test_the_gate_keeps_numbers_with_what_passes_and_reasons_with_what_does_not():
    stage = GateStage(GateConfig())
    earlier = Rejected(file="f", name="f", code="damaged", message="x")
    short = pieces(long_clip(300, Caption(text="blinks", start=1, end=1.4)))[0]
    fit, passed, held = stage([pieces(long_clip(90))[0], earlier, short])
    assert isinstance(fit, FitPiece)
    assert fit.row.quality["static_share"] == 0.0
    assert passed is earlier
    assert (held.code, held.num_frames, held.motion is short.motion) == ("too_short", 12, True)


def test_what_no_check_foresaw_costs_its_own_clip():
    clip = long_clip(60)
    odd = dataclasses.replace(clip.body, rotations=clip.body.rotations[:, :7])
    (rejected,) = pieces(dataclasses.replace(clip, body=odd))
    assert rejected.code == "unusable"
    good, spoiled = pieces(clip) * 2
    spoiled = dataclasses.replace(spoiled, row=dataclasses.replace(spoiled.row, scale="big"))
    passed, held = GateStage(GateConfig())([good, spoiled])
    assert isinstance(passed, FitPiece)
    assert held.code == "unusable"


def test_text_that_no_table_could_carry_is_made_printable():
    clip = long_clip(
        60, Caption(text="caf\udce9"), provenance={"source": "x\udce9", "note": "\udce9"}
    )
    (piece,) = pieces(clip)
    assert piece.row.captions[0].text == "caf\\udce9"
    assert piece.row.source == "x\\udce9"
    to_table([piece.row])
