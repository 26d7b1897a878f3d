import random

import torch

from hymotion_ray.engine.train.batches import Batches, canonical, hip_heading, vary
from hymotion_ray.motion.features import canonicalise, decode_features, encode_features
from hymotion_ray.motion.rotations import heading, rot6d_to_matrix
from hymotion_ray.motion.skeleton import generic_skeleton
from hymotion_ray.text.static import StaticEncoder

from .conftest import make_track


def raw(batches: Batches, x: torch.Tensor) -> torch.Tensor:
    return x * batches.std + batches.mean


def test_windows_face_plus_z_from_the_origin(batches: Batches) -> None:
    batch = batches.draw(32, 60, text_noise=0.0)
    x = raw(batches, batch.x)
    facing = heading(rot6d_to_matrix(x[:, 0, 3:9]))
    assert facing.abs().max() < 1e-4
    assert x[:, 0, [0, 2]].abs().max() < 1e-4
    assert (x[:, 19, 2] > 0.4).all()  # 19 steps of 3 cm, wherever the track was going


def test_canonical_windows_equal_the_motion_room_s() -> None:
    features = make_track("a", ("x",), turn=0.02).features[50:110]
    ours = canonical(features[None], hip_heading(features[:1]))[0]
    skeleton = generic_skeleton()
    rot6d, transl = canonicalise(*decode_features(features), skeleton)
    theirs = encode_features(rot6d, transl, skeleton)
    theirs[:, 1] = ours[:, 1]  # the floor is the whole clip's, not the window's
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_frames_past_the_end_are_zero_and_the_others_normalised(batches: Batches) -> None:
    batch = batches.draw(256, 180, text_noise=0.0)
    valid = torch.arange(180) < batch.length[:, None]
    assert (batch.x[~valid] == 0).all()
    frames = batch.x[valid]
    moving = batches.std > 1e-3
    assert (frames[:, ~moving] == 0).all()
    assert (frames[:, moving].std(0) - 1).abs().max() < 0.15
    assert batch.length.min() >= 90
    assert 170 < batch.length.max() <= 180


def test_captions_follow_the_turn_of_the_window(encoder: StaticEncoder) -> None:
    track = make_track("b", (), turn=0.01)  # 17 degrees a second to the left
    batches = Batches([track], encoder, torch.device("cpu"), seed=0)
    batch = batches.draw(16, 60, text_noise=0.0)
    words = torch.nn.functional.normalize(
        encoder.encode(["straight", "left", "right"]).vector[:, 0]
    )
    nearest = (torch.nn.functional.normalize(batch.vector[:, 0]) @ words.T).argmax(1)
    assert (nearest == 1).all()


def test_one_seed_gives_the_same_batches(encoder: StaticEncoder) -> None:
    tracks = [make_track("a", ("walking",)), make_track("b", ("turning",), turn=0.01)]
    first, second = (Batches(tracks, encoder, torch.device("cpu"), seed=3) for _ in range(2))
    for _ in range(2):
        for a, b in zip(first.draw(4, 40, 0.3), second.draw(4, 40, 0.3), strict=True):
            assert torch.equal(a, b)


def test_varied_captions_keep_most_of_their_words() -> None:
    draw = random.Random(0)
    forms = {vary("a person walks slowly to the left", draw) for _ in range(50)}
    assert len(forms) > 20
    assert all(
        sum(word in form.split() for word in ("walks", "slowly", "to", "left")) >= 3
        for form in forms
    )
