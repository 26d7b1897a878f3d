"""Parquet shards as sources: of a render and of a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_files import smpl_walk

from hymotion_ray.formats.motions.npz import write_npz
from hymotion_ray.formats.shard_table import ShardCaption, ShardClip, encode_shard, to_table
from hymotion_ray.formats.sources import (
    Caption,
    SourceClip,
    SourceReject,
    list_sources,
    read_source,
    to_motion,
)
from hymotion_ray.motion.canonical import canonical_clip
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import generic_skeleton

SKELETON = generic_skeleton()


def read(path: Path) -> list[SourceClip | SourceReject]:
    (file,) = list_sources([path])
    return list(read_source(file))


def walk(prompt: str = "a walk") -> Motion:
    poses, trans = smpl_walk(60, 22)
    rotations = rotvec_to_matrix(torch.from_numpy(poses.reshape(-1, 22, 3)))
    return Motion.from_rotations(
        matrix_to_rot6d(rotations), torch.from_numpy(trans), SKELETON, 30.0, {"prompt": prompt}
    )


def test_rows_of_a_render(tmp_path: Path) -> None:
    rows = [write_npz(walk("one")), b"damaged", None, write_npz(walk("four"))]
    pq.write_table(pa.table({"id": list("abcd"), "npz": rows}), tmp_path / "part-0.parquet")
    first, *bad, last = read(tmp_path / "part-0.parquet")
    assert isinstance(first, SourceClip)
    assert isinstance(last, SourceClip)
    assert (first.name, last.name) == ("part-0.parquet#a", "part-0.parquet#d")
    assert [c.text for c in first.captions + last.captions] == ["one", "four"]
    assert [r.code for r in bad if isinstance(r, SourceReject)] == ["damaged", "damaged"]
    np.testing.assert_allclose(to_motion(first, SKELETON)[0].joints, walk().joints, atol=1e-5)


def test_rows_of_a_dataset(tmp_path: Path) -> None:
    motion = canonical_clip(walk())
    clip = ShardClip(
        clip_id="CMU/01@0",
        split_group="CMU/01",
        source="AMASS",
        licence="research",
        fps_src=120.0,
        transl=motion.transl.numpy(),
        rot6d=motion.rot6d.numpy(),
        source_leg_length=SKELETON.leg_length / 2,
        scale=2.0,
        pelvis_offset=None,
        captions=(ShardCaption(text="a walk", start=0.0, end=1.0, mirrored=True),),
        provenance={"up_axis": "+z"},
    )
    (tmp_path / "a.parquet").write_bytes(encode_shard(to_table([clip]), 1e6))
    (found,) = read(tmp_path / "a.parquet")
    assert isinstance(found, SourceClip)
    assert found.captions == (Caption(text="a walk", start=0.0, end=1.0, mirrored=True),)
    assert found.provenance["licence"] == "research"
    assert found.provenance["split_group"] == "CMU/01"
    back, fit = to_motion(found, SKELETON)
    assert fit.scale == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(canonical_clip(back).joints, motion.joints, atol=1e-4)


def test_other_tables_and_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    (found,) = read(tmp_path / "a.parquet")
    assert isinstance(found, SourceReject)
    assert found.code == "no_motion"
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    (found,) = read(tmp_path / "a.parquet")
    assert isinstance(found, SourceReject)
    assert found.code == "damaged"


def test_tables_beside_shards_hold_no_motion_of_their_own(tmp_path: Path) -> None:
    """A dataset's samples are rejects: as a source they must not come back in."""
    motion = canonical_clip(walk())
    row = ShardClip(
        clip_id="a",
        split_group="sliding",
        source="",
        licence="",
        fps_src=30.0,
        transl=motion.transl.numpy(),
        rot6d=motion.rot6d.numpy(),
        source_leg_length=None,
        scale=1.0,
        pelvis_offset=None,
    )
    pq.write_table(to_table([row]), tmp_path / "round-0000.parquet")
    (reject,) = read(tmp_path / "round-0000.parquet")
    assert isinstance(reject, SourceReject)
    assert (reject.code, reject.is_motion) == ("document", False)
