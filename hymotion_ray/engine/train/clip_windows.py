"""Features of whole clips, and windows of them moved to where training clips start.

A clip's features are built once, plain and in a mirror, and kept while there is room: all that an
example costs then is a cut, a turn and its noise. Knows no captions, no order and no files.

Shapes: L frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hymotion_ray.engine.train.clip_reader import Cache
from hymotion_ray.formats.shard_table import ShardClip
from hymotion_ray.formats.shards import on_skeleton
from hymotion_ray.motion.features import NUM_FEATURES, encode_features, mirror
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.rotations import heading, rot6d_to_matrix, yaw_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PELVIS, Skeleton

if TYPE_CHECKING:
    from hymotion_ray.engine.train.examples import ExampleRules

WholeClip = Callable[[ShardClip, bool], Tensor]
"""Features (L, 201), not normalised, of a clip as it stands, or (True) of its mirror image."""
_ROOT = slice(3, 9)
_BODY = slice(NUM_FEATURES - 3 * NUM_BODY_JOINTS, NUM_FEATURES)
_FRAME_BYTES = 4 * NUM_FEATURES


class ClipFeatures:
    """Makes features of whole clips, and keeps the ones asked for lately."""

    def __init__(self, rules: ExampleRules, max_bytes: int) -> None:
        self._rules = rules
        self._held = Cache[tuple[str, bool], Tensor](max_bytes)

    def __call__(self, clip: ShardClip, is_mirrored: bool) -> Tensor:
        """As `WholeClip`; nobody may change what it returns."""
        key = (clip.clip_id, is_mirrored)
        features = self._held.get(key)
        if features is None:
            features = whole_clip(clip, is_mirrored, self._rules)
            self._held.put(key, features, len(features) * _FRAME_BYTES)
        return features


def whole_clip(clip: ShardClip, is_mirrored: bool, rules: ExampleRules) -> Tensor:
    """Features (L, 201) on the model's body; a frame that is not finite spoils only itself."""
    rot6d, transl = map(torch.from_numpy, on_skeleton(clip, rules.made_for, rules.skeleton))
    if is_mirrored:
        rot6d, transl = mirror(rot6d, transl, rules.skeleton)
    return encode_features(rot6d, transl, rules.skeleton)


def canonical_window(features: Tensor, skeleton: Skeleton) -> Tensor:
    """Features (L, 201) moved: facing +Z, x = z = 0 at frame 0, the lowest sole at y = 0.

    As `motion.features.canonicalise` of the motion, without kinematics: turning the whole body
    turns the pelvis and the positions, and leaves local rotations as they are.
    """
    start = float(heading(rot6d_to_matrix(features[0, _ROOT])))
    turn = yaw_matrix(torch.tensor(-start, dtype=torch.float64)).float()
    pelvis = torch.tensor(skeleton.rest[PELVIS], dtype=torch.float32)
    place = (features[:, :3] + pelvis) @ turn.mT
    body = features[:, _BODY].unflatten(1, (NUM_BODY_JOINTS, 3)) @ turn.mT
    floor = joint_floor(body + place[:, None], skeleton)
    moved = features.clone()
    transl = place - pelvis
    moved[:, :3] = transl - torch.stack([transl[0, 0], floor, transl[0, 2]])
    moved[:, _ROOT] = (turn @ features[:, _ROOT].unflatten(1, (3, 2))).flatten(1)
    moved[:, _BODY] = body.flatten(1)
    return moved
