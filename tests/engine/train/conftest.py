from pathlib import Path

import pytest
import torch

import hymotion_ray
from hymotion_ray.engine.train.clips import Track
from hymotion_ray.motion.features import encode_features
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import generic_skeleton
from hymotion_ray.text.static import StaticEncoder

TEXT = Path(hymotion_ray.__file__).parent / "assets" / "tiny" / "text"


def make_track(
    clip: str, captions: tuple[str, ...], turn: float = 0.0, num_frames: int = 200
) -> Track:
    """A body that walks where it faces, swings its left arm and turns `turn` radians a frame."""
    steps = torch.arange(num_frames, dtype=torch.float32)
    rotvec = torch.zeros(num_frames, 22, 3)
    rotvec[:, 0, 1] = 1.0 + steps * turn
    rotvec[:, 16, 0] = torch.sin(steps / 5)
    facing = rotvec[:, 0, 1]
    move = 0.03 * torch.stack([facing.sin(), torch.zeros(num_frames), facing.cos()], dim=-1)
    transl = move.cumsum(0) + torch.tensor([3.0, 1.2, -2.0])
    rot6d = matrix_to_rot6d(rotvec_to_matrix(rotvec))
    features = encode_features(rot6d, transl, generic_skeleton())
    by_turn = tuple((*captions, word) for word in ("straight", "left", "right"))
    return Track(clip, features, (by_turn[0], by_turn[1], by_turn[2]), num_frames - 60, 20)


@pytest.fixture(scope="session")
def encoder() -> StaticEncoder:
    return StaticEncoder(TEXT)
