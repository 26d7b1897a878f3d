import random

import torch

from hymotion_ray.engine.train.take_windows import canonical, hip_heading, vary
from hymotion_ray.motion.features import canonicalise, decode_features, encode_features
from hymotion_ray.motion.skeleton import generic_skeleton

from .conftest import make_track


def test_canonical_windows_equal_the_motion_room_s() -> None:
    features = make_track("a", ("x",), turn=0.02).features[50:110]
    ours = canonical(features[None], hip_heading(features[:1]))[0]
    skeleton = generic_skeleton()
    rot6d, transl = canonicalise(*decode_features(features), skeleton)
    theirs = encode_features(rot6d, transl, skeleton)
    theirs[:, 1] = ours[:, 1]  # the floor is the whole clip's, not the window's
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_varied_captions_keep_most_of_their_words() -> None:
    draw = random.Random(0)
    forms = {vary("a person walks slowly to the left", draw) for _ in range(50)}
    assert len(forms) > 20
    assert all(
        sum(word in form.split() for word in ("walks", "slowly", "to", "left")) >= 3
        for form in forms
    )
