"""A job's clips as downloads: what the formats hold, and tags that stand for the bytes."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
import torch

from hymotion_ray.engine.serve.results import MEDIA_TYPES, Clip, encode_result
from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions import decode_motion, encode_motion
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, generic_skeleton


def clip(seed: int, num_frames: int = 24) -> Motion:
    generator = torch.Generator().manual_seed(seed)
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(num_frames, NUM_BODY_JOINTS, 1)
    rot6d = rot6d + 0.3 * torch.randn(rot6d.shape, generator=generator)
    transl = torch.randn(num_frames, 3, generator=generator).cumsum(0) * 0.02
    meta = {"prompt": "a person <b>walks</b>", "seed": seed}
    return Motion.from_rotations(rot6d, transl, generic_skeleton(), 30, meta)


def kept(seed: int, num_frames: int = 24) -> Clip:
    return Clip(seed, encode_motion(clip(seed, num_frames), "npz"))


@pytest.mark.parametrize("name", ["npz", "glb", "bvh"])
def test_one_clip_is_the_file_that_render_writes(name):
    result = encode_result([kept(7)], name, "walk")
    assert result.content == encode_motion(clip(7), name)
    assert result.filename == f"walk_s7.{name}"
    read = decode_motion(result.content, name)
    assert torch.allclose(read.joints[:, :22], clip(7).joints[:, :22], atol=1e-3)


@pytest.mark.parametrize("name", ["npz", "glb", "bvh"])
def test_several_clips_are_one_archive_with_a_file_each(name):
    clips = [kept(7), kept(8, 40), kept(7)]
    result = encode_result(clips, name, "walk")
    assert result.media_type == "application/zip"
    with zipfile.ZipFile(io.BytesIO(result.content)) as packed:
        assert packed.testzip() is None
        names = packed.namelist()
        assert len(set(names)) == 3
        assert names[:2] == [f"walk_s7.{name}", f"walk_s8.{name}"]
        assert packed.read(names[1]) == encode_motion(clip(8, 40), name)


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_the_same_clips_give_the_same_bytes_and_tag(name):
    first, again = (encode_result([kept(1), kept(2)], name, "w") for _ in range(2))
    other = encode_result([kept(1), kept(3)], name, "w")
    assert first.content == again.content
    tag = first.headers()["ETag"]
    assert tag == f'"{hashlib.sha256(first.content).hexdigest()}"'
    assert again.matches(tag)
    assert again.matches(f'"old", W/{tag}')
    assert again.matches("*")
    assert not other.matches(tag)
    assert not first.matches(None)
    assert "\n" not in first.headers()["Content-Disposition"]


def test_json_needs_no_library_to_be_read():
    motion = clip(5)
    document = json.loads(encode_result([kept(5)], "json", "walk").content)
    assert document["joint_names"][0] == "Pelvis"
    (shown,) = document["clips"]
    assert shown["num_frames"] == 24
    assert shown["meta"]["seed"] == 5
    joints = np.asarray(shown["joints"])
    assert np.abs(joints - motion.joints[:, :22].numpy()).max() < 2e-5
    assert np.abs(np.asarray(shown["root"]) - joints[:, 0]).max() < 2e-5
    assert np.allclose(np.linalg.norm(shown["rotations"], axis=-1), 1, atol=1e-4)


def test_a_page_keeps_prompts_as_text():
    page = encode_result([kept(5)], "html", "walk").content.decode()
    assert "<b>walks" not in page
    assert "&lt;b&gt;walks" in page


def test_names_of_files_are_made_safe():
    result = encode_result([kept(5)], "glb", '../..\\x"\r\nSet-Cookie: a')
    assert not set(result.filename) & set('/\\"\r\n:')


def test_wrong_formats_no_clips_and_broken_clips_are_said():
    with pytest.raises(OutputError, match="allowed: npz"):
        encode_result([kept(5)], "exe", "walk")
    with pytest.raises(OutputError, match="no clips"):
        encode_result([], "npz", "walk")
    whole = kept(5).npz
    for name in ("glb", "json", "html"):
        with pytest.raises(InputError, match="seed 5"):
            encode_result([Clip(5, whole[: len(whole) // 2])], name, "walk")
