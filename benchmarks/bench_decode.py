"""How long decoding and writing one 5 s clip takes on one core, amortised over a batch.

    python benchmarks/bench_decode.py [--clips 64] [--repeats 5] [--json]

Times the decoder (denormalise, smooth, kinematics, floor) and the npz writer on clips of 150 frames
that move at human speeds. The mesh is a made-up one of the released size, 24,256 vertices around
the generic skeleton; a lying body is timed too, since there most of the surface may be lowest. The
last line is one JSON object; `decode_ms` is decode with the joint ground rule plus npz. CPU time of
one thread, the best of the repeats, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable

import numpy as np
import roma
import scipy
import torch
from torch import Tensor

from hymotion_ray.formats.motions.npz import write_npz
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.features import encode_features
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import NUM_JOINTS, PARENTS, Skeleton, generic_skeleton

NUM_FRAMES = 150
NUM_VERTICES = 24_256


def human_latents(skeleton: Skeleton, num_clips: int, lying: bool) -> list[Tensor]:
    """Latents (150, 201) under unit statistics: joints swinging at up to about 3 rad/s."""
    generator = torch.Generator().manual_seed(0)
    seconds = torch.arange(NUM_FRAMES)[:, None, None] / 30
    latents = []
    for _ in range(num_clips):
        phase, speed = torch.rand(2, 1, 22, 3, generator=generator)
        rotvec = 0.4 * torch.sin(6.3 * phase + (1 + 6 * speed) * seconds)
        if lying:
            rotvec[:, 0] = torch.tensor([-1.5708, 0.0, 0.0]) + 0.02 * rotvec[:, 0]
        transl = 0.5 * torch.sin(seconds[:, 0] + 6.3 * torch.rand(3, generator=generator))
        rot6d = matrix_to_rot6d(roma.rotvec_to_rotmat(rotvec))
        latents.append(encode_features(rot6d, transl, skeleton))
    return latents


def made_up_mesh(skeleton: Skeleton) -> BodyMesh:
    """A surface of the released size: tubes around the bones, weights blended near their ends."""
    rng = np.random.default_rng(0)
    ends = rng.integers(1, NUM_JOINTS, NUM_VERTICES)
    starts = np.array(PARENTS)[ends]
    before = np.maximum(np.array(PARENTS)[starts], 0)
    along = rng.random((NUM_VERTICES, 1))
    axis = skeleton.rest[starts] + along * (skeleton.rest[ends] - skeleton.rest[starts])
    radius = np.where(ends >= 22, 0.01, np.where(starts == 0, 0.12, 0.05))[:, None]
    around = rng.normal(size=(NUM_VERTICES, 3))
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    here, late, early = np.ones_like(along), np.maximum(along - 0.6, 0), np.maximum(0.4 - along, 0)
    weights = np.concatenate([here, late, early, 0 * along], axis=1)
    weights /= weights.sum(axis=1, keepdims=True)
    return BodyMesh(
        vertices=(axis + radius * around).astype(np.float32),
        skin_weights=weights.astype(np.float32),
        skin_indices=np.stack([starts, ends, before, starts], axis=1),
        faces=np.zeros((0, 3), dtype=np.int64),
    )


def best_ms(work: Callable[[], object], repeats: int, num_clips: int) -> float:
    """Milliseconds a clip of the fastest of `repeats` runs."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return round(1000 * min(seconds) / num_clips, 3)


def measure(num_clips: int, repeats: int) -> dict[str, object]:
    """All timings, in milliseconds a clip."""
    skeleton = generic_skeleton()
    mean, std = torch.zeros(201), torch.ones(201)
    by_joints = Decoder(mean, std, skeleton)
    by_mesh = Decoder(mean, std, skeleton, made_up_mesh(skeleton))
    upright = human_latents(skeleton, num_clips, lying=False)
    lying = human_latents(skeleton, num_clips, lying=True)
    motions = by_joints.decode(upright)

    def both(decoder: Decoder) -> list[bytes]:
        return [write_npz(motion) for motion in decoder.decode(upright)]

    def npz(clips: list[Motion]) -> list[bytes]:
        return [write_npz(motion) for motion in clips]

    return {
        "decode_ms": best_ms(lambda: both(by_joints), repeats, num_clips),
        "decode_mesh_ms": best_ms(lambda: both(by_mesh), repeats, num_clips),
        "decode_only_ms": best_ms(lambda: by_joints.decode(upright), repeats, num_clips),
        "decode_only_raw_ms": best_ms(
            lambda: by_joints.decode(upright, smooth=False), repeats, num_clips
        ),
        "decode_only_mesh_ms": best_ms(lambda: by_mesh.decode(upright), repeats, num_clips),
        "decode_only_mesh_lying_ms": best_ms(lambda: by_mesh.decode(lying), repeats, num_clips),
        "npz_only_ms": best_ms(lambda: npz(motions), repeats, num_clips),
        "one_clip_ms": best_ms(lambda: by_joints.decode(upright[:1]), repeats, 1),
    }


def main() -> None:
    """Measure on one thread and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=64, help="clips decoded in one call")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the best counts")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options.clips, options.repeats)
    if not options.json:
        for name, value in results.items():
            print(f"{name:28s} {value} ms")
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {"numpy": np.__version__, "scipy": scipy.__version__}
    command = " ".join(["python", *sys.argv])
    print(json.dumps({**results, "mode": "exact", "command": command, "versions": versions}))


if __name__ == "__main__":
    main()
