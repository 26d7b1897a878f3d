"""Every file at hand is read or refused for a true reason, as docs/ingest-sources.md lists."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hymotion_ray.formats.sources import (
    SourceClip,
    SourceReject,
    list_sources,
    load_captions,
    read_source,
    to_motion,
)
from hymotion_ray.formats.sources.joint_names import find_humanoid
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.skeleton import generic_skeleton

SKELETON = generic_skeleton()
REFUSED = {
    "motions/bvh/synthetic_23p976fps_3frames.bvh": "unknown_skeleton",
    "motions/bvh/synthetic_no_end_sites_60fps.bvh": "unknown_skeleton",
    "motions/bvh/synthetic_rotation_channels_first_25fps.bvh": "unknown_skeleton",
    "motions/fbx/assimp_animation_with_skeleton.fbx#Armature|ArmatureAction": "unknown_skeleton",
    "motions/other/dm_control_test_trajectories.h5": "unknown_kind",
    "motions/smpl/romp_output_object_array.npz": "camera_frame",
}
NO_MOTION = {"document", "skeleton", "captions"}


@pytest.mark.filterwarnings("ignore")
def test_every_file_is_read_or_refused_for_a_true_reason(shared: Path) -> None:
    pytest.importorskip("pufbx")
    refused, others, kinds, captioned = {}, Counter(), Counter(), 0
    captions = load_captions([str(shared / "corpus" / "captions.csv")])
    seen: dict[bytes, str] = {}
    for root in ("corpus", "motions"):
        for file in list_sources([shared / root]):
            if not file.member and file.kind not in ("document", "captions", "skeleton"):
                digest = hashlib.sha256(Path(file.path).read_bytes()).digest()
                if seen.setdefault(digest, file.path) != file.path:
                    continue  # the same bytes were read under another name
            for clip in read_source(file, captions=captions):
                if isinstance(clip, SourceClip):
                    kinds[clip.provenance["source"]] += 1
                    captioned += len(clip.captions)
                elif clip.is_motion:
                    refused[f"{root}/{clip.name}"] = clip.code
                else:
                    others[clip.code] += 1
    assert refused == REFUSED
    assert set(others) == NO_MOTION
    assert kinds == {
        "BVH": 17, "ASF/AMC": 18, "DeepMimic": 25, "GLB": 76, "VRMA": 1, "Kimodo": 1, "AIST++": 1,
    }  # fmt: skip
    assert captioned == captions.num_captions == 126


# file, clip or "": most sliding speed of toes near the floor in m/s, least facing (None: in place)
WALKS = [
    ("corpus/cmu.zip", "02_01", 0.15, 0.95),
    ("corpus/cmu.zip", "02_03", 0.25, 0.95),  # a run
    ("motions/bvh/pymo_8walk_xyz_120p005fps.bvh", "", 0.15, 0.9),
    ("motions/bvh/cmu_01_01_jumps_120fps.bvh", "", 0.3, 0.9),
    ("motions/bvh/NC_bandai1_walk_normal_6ch_30fps.bvh", "", 0.8, 0.95),  # slides in the source too
    ("motions/other/kimodo_soma30_run_leap.npz", "", 0.15, 0.95),
    ("corpus/deepmimic/humanoid3d_walk.txt", "", 0.1, 0.95),
    ("corpus/bvh/zombie.bvh", "", 0.1, 0.8),
]


@pytest.mark.parametrize(("name", "clip", "slide", "facing"), WALKS)
def test_walks_go_forwards_with_their_feet_on_the_floor(
    shared: Path, name: str, clip: str, slide: float, facing: float
) -> None:
    files = [f for f in list_sources([shared / name]) if clip in f.name and f.kind != "skeleton"]
    (found,) = read_source(files[0])
    assert isinstance(found, SourceClip)
    motion, fit = to_motion(found, SKELETON)
    quality = measure(motion)
    assert quality.skate_speed < slide
    assert quality.facing is not None
    assert quality.facing > facing
    assert fit.mean_error_m < 0.05
    assert fit.mean_angle_deg < 0.01
    # travel is the source's, by the ratio of legs
    pelvis = find_humanoid(found.joint_names, found.parents).joints["Pelvis"]
    root = found.positions[fit.dropped_frames :, pelvis].astype(np.float64)
    theirs = np.linalg.norm((root[-1] - root[0])[[0, 2]]) * fit.scale
    ours = np.linalg.norm((motion.transl[-1] - motion.transl[0])[[0, 2]].numpy())
    assert ours == pytest.approx(theirs, abs=0.1)
    # the body stands on its feet: soles at the floor, head up
    toes = motion.joints[:, [10, 11], 1].min(dim=1).values.numpy()
    assert np.quantile(toes, 0.25) < 0.12
    assert float(motion.joints[:, 15, 1].median()) > 1.2


def test_rejects_never_hide_a_clip(shared: Path) -> None:
    """What a reject says is said of a name that no clip has."""
    for root in ("motions/gltf", "motions/amc", "motions/smpl"):
        for file in list_sources([shared / root]):
            names = [clip.name for clip in read_source(file)]
            assert len(set(names)) == len(names)
            assert all(name.startswith(file.name) for name in names)
            assert not any(isinstance(n, SourceReject) for n in names)
