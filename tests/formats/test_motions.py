"""Motions by suffix: every format through the same two functions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sample_motions import WITHIN_MM, tumble

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions import (
    FORMATS,
    decode_motion,
    encode_motion,
    load_motion,
    save_motion,
)

READABLE = [name for name, entry in FORMATS.items() if entry.read is not None]


def test_the_formats_that_are_promised_are_there():
    assert list(FORMATS) == ["npz", "bvh", "glb", "fbx", "usda"]
    assert READABLE == ["npz", "bvh", "glb"]


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("axis", ["y-up", "z-up"])
def test_a_saved_motion_comes_back(name, axis, tmp_path):
    motion = tumble()
    save_motion(motion, tmp_path / f"clip.{name}", axis=axis)
    back = load_motion(str(tmp_path / f"clip.{name}"))
    assert torch.linalg.norm(back.joints[:, :22] - motion.joints[:, :22], dim=-1).max() < WITHIN_MM
    assert back.fps == motion.fps


@pytest.mark.parametrize("name", ["npz", "bvh", "glb", "fbx"])
def test_the_file_holds_the_encoded_bytes(name, tmp_path):
    motion = tumble()
    path = tmp_path / "deep" / f"CLIP.{name.upper()}"
    save_motion(motion, path)
    assert path.read_bytes() == encode_motion(motion, name)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".xyz", "", ".npy"])
def test_unknown_suffixes_name_the_known_ones(suffix, tmp_path):
    with pytest.raises(OutputError, match=r"\.npz, \.bvh, \.glb, \.fbx, \.usda"):
        save_motion(tumble(), tmp_path / f"clip{suffix}")
    with pytest.raises(InputError, match="npz, bvh, glb"):
        load_motion(tmp_path / f"clip{suffix}")
    assert not list(tmp_path.iterdir())


def test_write_only_formats_say_so(tmp_path):
    with pytest.raises(InputError, match="only written"):
        load_motion(tmp_path / "clip.fbx")


@pytest.mark.parametrize("suffix", [".html", ".MP4", ".png"])
def test_previews_point_to_their_own_way(suffix, tmp_path):
    with pytest.raises(OutputError, match="preview"):
        save_motion(tumble(), tmp_path / f"clip{suffix}")


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(InputError):
            load_motion(path)


def test_unknown_names_of_formats():
    with pytest.raises(OutputError, match="allowed: npz"):
        encode_motion(tumble(), "abc")
    with pytest.raises(InputError, match=r"clip\.abc"):
        decode_motion(b"", "abc", "clip.abc")


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_motion_that_is_not_finite_is_not_written(name):
    motion = tumble()
    transl = motion.transl.clone()
    transl[3, 1] = float("nan")
    with pytest.raises(OutputError, match="NaN"):
        encode_motion(dataclasses.replace(motion, transl=transl), name)


def test_formats_agree_with_each_other():
    """What one program reads from BVH, another reads from GLB."""
    motion = tumble()
    backs = [decode_motion(encode_motion(motion, name), name) for name in READABLE]
    for back in backs[1:]:
        assert np.abs((back.joints - backs[0].joints)[:, :22].numpy()).max() < WITHIN_MM
