"""From the network's latents to motions: denormalise, smooth, forward kinematics, ground.

It knows the order of these steps and runs them for many clips at once; what each does lies in its
own file. A clip's motion is the same to the bit alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hymotion_ray.errors import CheckpointError, SamplingError
from hymotion_ray.motion.body import BodyMesh, LowestVertex
from hymotion_ray.motion.features import NUM_FEATURES, decode_features
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, rot6d_to_matrix
from hymotion_ray.motion.skeleton import Skeleton
from hymotion_ray.motion.smoothing import smooth_rotations, smooth_translation

# Dimensions that never moved in training have a std of rounding errors; their mean is what they
# are.
_SMALLEST_STD = 1e-3
# Normalised numbers beyond this are no motion but a run that diverged, and near overflow.
_LARGEST = 1e6
# Frames worked on at once: the intermediate matrices of more would not stay in a core's cache.
_CHUNK_FRAMES = 900


class Decoder:
    """Turns latents into motions of one body.

    The batch is one clip after another, never padded, so clips of unlike length cost what they
    hold.
    """

    def __init__(
        self,
        mean: Tensor,
        std: Tensor,
        skeleton: Skeleton,
        mesh: BodyMesh | None = None,
        fps: float = 30,
    ) -> None:
        """mean, std: (201,) or (1, 201), any float type; a std under 1e-3 counts as 0.

        skeleton: the body to move; mesh: its surface, which then decides where the floor is,
        instead of ankles and toes. Raises CheckpointError when the statistics cannot be used.
        """
        self._mean = _statistics(mean, "mean")
        std = _statistics(std, "std")
        self._std = torch.where(std < _SMALLEST_STD, torch.zeros_like(std), std)
        self._skeleton = skeleton
        self._lowest = None if mesh is None else LowestVertex(mesh, skeleton)
        self._fps = float(fps)

    @torch.no_grad()
    def decode(
        self,
        latents: Sequence[Tensor],
        smooth: bool = True,
        names: Sequence[str] | None = None,
    ) -> list[Motion]:
        """Motions of latents (L, 201), in order; float32 on the CPU, standing on the floor y = 0.

        smooth: without it the rotations are the network's own numbers, not even orthonormal. names:
        what to call each clip in an error; its number when left out. `meta` of each motion has
        `ground` ("mesh" or "joints") and `floor`, the height that was subtracted.
        Raises SamplingError, naming the clips, when a latent is not (L, 201), or holds numbers that
        are not finite or beyond 1e6.
        """
        names = [f"clip {index}" for index in range(len(latents))] if names is None else names
        _check_latents(latents, names)
        motions: list[Motion] = []
        for chunk in _chunks(latents):
            motions.extend(self._decode_chunk(chunk, smooth))
        return motions

    def _decode_chunk(self, latents: Sequence[Tensor], smooth: bool) -> Iterator[Motion]:
        """Decode clips laid end to end."""
        lengths = [latent.shape[0] for latent in latents]
        frames = torch.cat([latent.to("cpu", torch.float32) for latent in latents])
        rot6d, transl = decode_features(frames * self._std + self._mean)
        if smooth:
            local = smooth_rotations(rot6d_to_matrix(rot6d.double()), lengths).float()
            rot6d = matrix_to_rot6d(local)
            transl = smooth_translation(transl, lengths)
        else:
            local = rot6d_to_matrix(rot6d)
        world, posed = forward_kinematics(local, self._skeleton)
        floors = self._floors(world, posed + transl[:, None], lengths)
        clips = zip(
            rot6d.split(lengths), transl.split(lengths), posed.split(lengths), floors, strict=True
        )
        for clip_rot6d, clip_transl, clip_posed, floor in clips:
            grounded = clip_transl - torch.tensor([0.0, floor, 0.0])
            joints = clip_posed + grounded[:, None]
            meta: dict[str, str | int | float] = {
                "ground": "joints" if self._lowest is None else "mesh",
                "floor": floor,
            }
            yield Motion(clip_rot6d.clone(), grounded, joints, self._fps, self._skeleton, meta)

    def _floors(self, world: Tensor, joints: Tensor, lengths: Sequence[int]) -> list[float]:
        """Height of the floor under each clip, in metres."""
        if self._lowest is not None:
            return self._lowest.heights(world, joints, lengths)
        return [float(joint_floor(clip, self._skeleton)) for clip in joints.split(list(lengths))]


def _statistics(values: Tensor, name: str) -> Tensor:
    """The (201,) float32 form of the statistics `name`."""
    values = torch.as_tensor(values)
    if values.numel() != NUM_FEATURES or not bool(values.isfinite().all()):
        raise CheckpointError(
            f"the model's {name} has shape {tuple(values.shape)}; allowed: {NUM_FEATURES} finite"
            " numbers. Take the statistics that belong to these weights"
        )
    return values.reshape(NUM_FEATURES).float()


def _check_latents(latents: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise SamplingError that names every clip whose latent cannot be decoded."""
    problems = []
    for latent, name in zip(latents, names, strict=True):
        if latent.ndim != 2 or latent.shape[0] < 1 or latent.shape[1] != NUM_FEATURES:
            problems.append(f"{name} has shape {tuple(latent.shape)}")
        elif not bool((latent.abs() <= _LARGEST).all()):
            problems.append(f"{name} holds NaN, infinity or numbers beyond {_LARGEST:g}")
    if problems:
        raise SamplingError(
            f"cannot decode {'; '.join(problems)}; allowed: finite latents of shape (frames,"
            f" {NUM_FEATURES}). Sample these clips again, in float32 if it was a lower precision"
        )


def _chunks(latents: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive clips, together at most `_CHUNK_FRAMES` frames unless one clip is longer."""
    chunk: list[Tensor] = []
    for latent in latents:
        if chunk and sum(len(other) for other in chunk) + len(latent) > _CHUNK_FRAMES:
            yield chunk
            chunk = []
        chunk.append(latent)
    if chunk:
        yield chunk
