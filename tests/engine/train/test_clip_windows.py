"""Windows of a whole clip's features are the features of the clip's cut, moved pieces."""

from __future__ import annotations

import pytest
import torch
from made_shards import moving_clip

from hymotion_ray.engine.train.clip_windows import canonical_window
from hymotion_ray.motion.features import canonicalise, encode_features, mirror
from hymotion_ray.motion.skeleton import generic_skeleton


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_window_is_the_piece_in_the_canonical_frame(is_mirrored: bool) -> None:
    skeleton, clip = generic_skeleton(), moving_clip(5, 80)
    shown = torch.from_numpy(clip.rot6d.copy()), torch.from_numpy(clip.transl.copy())
    # A turn half way, so that the window does not face ahead at its start.
    shown[0][:, 0] = shown[0][:, 0].roll(7, dims=0)
    if is_mirrored:
        shown = mirror(*shown, skeleton)
    whole = encode_features(*shown, skeleton)
    piece = tuple(part[23:61].double() for part in shown)
    moved = canonicalise(piece[0], piece[1], skeleton)
    expected = encode_features(moved[0].float(), moved[1].float(), skeleton)
    kept = whole.clone()
    torch.testing.assert_close(
        canonical_window(whole[23:61], skeleton), expected, rtol=1e-5, atol=3e-6
    )
    assert torch.equal(whole, kept)
