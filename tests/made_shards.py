"""Small datasets of made-up clips, written as `ingest` writes them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hymotion_ray.formats.shard_table import ShardCaption, ShardClip, encode_shard, to_table
from hymotion_ray.formats.shards import ShardInfo, shard_mapping, stats_digest
from hymotion_ray.motion.features import canonicalise, encode_features
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import generic_skeleton

CAPTIONS = ("a person walks", "someone turns left", "a man waves his right arm", "she bows")


def moving_clip(number: int, num_frames: int | None = None) -> ShardClip:
    """A body that swings its arms and walks, each number in its own way."""
    draw = np.random.default_rng(number)
    num_frames = num_frames or int(draw.integers(24, 60))
    steps = torch.arange(num_frames, dtype=torch.float32)
    rotvec = torch.zeros(num_frames, 22, 3)
    for joint in (1, 2, 4, 5, 16, 17, 18):
        speed, size = draw.uniform(0.1, 0.4), draw.uniform(0.1, 0.6)
        rotvec[:, joint, 0] = size * torch.sin(speed * steps + draw.uniform(0, 6))
    transl = torch.stack([0 * steps, 0.05 * torch.sin(0.3 * steps), 0.03 * steps], dim=-1)
    rot6d = matrix_to_rot6d(rotvec_to_matrix(rotvec)).flatten(2)
    rot6d, transl = canonicalise(rot6d.double(), transl.double(), generic_skeleton())
    texts = [CAPTIONS[number % len(CAPTIONS)], CAPTIONS[(number + 1) % len(CAPTIONS)]]
    return ShardClip(
        clip_id=f"clip-{number:04d}",
        split_group=f"take-{number}",
        source="made up",
        licence="CC0-1.0",
        fps_src=30.0,
        transl=transl.float().numpy(),
        rot6d=rot6d.float().numpy(),
        source_leg_length=None,
        scale=1.0,
        pelvis_offset=None,
        captions=tuple(ShardCaption(text, 0.0, num_frames / 30) for text in texts),
        provenance={},
        quality={},
    )


def spoiled(clip: ShardClip) -> ShardClip:
    """The clip with one number that is none."""
    transl = clip.transl.copy()
    transl[3, 1] = np.nan
    return dataclasses.replace(clip, transl=transl)


def write_shards(
    folder: Path, train: Sequence[Sequence[ShardClip]], val: Sequence[ShardClip] = ()
) -> Path:
    """A dataset with these clips in shards of their own; returns its folder."""
    (folder / "shards").mkdir(parents=True)
    parts = [("train", clips) for clips in train] + ([("val", val)] if val else [])
    rows = [_write(folder, n, split, clips) for n, (split, clips) in enumerate(parts)]
    stats = _stats([clip for clips in train for clip in clips])
    (folder / "stats.json").write_bytes(stats)
    manifest = {
        "schema_version": 1,
        "skeleton": generic_skeleton().rest.tolist(),
        "shards": rows,
        "stats_sha256": hashlib.sha256(stats).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def small_dataset(folder: Path, sizes: Sequence[int] = (5, 4, 2), num_val: int = 3) -> Path:
    """Shards of so many clips, and a validation split."""
    numbers = iter(range(10_000))
    train = [[moving_clip(next(numbers)) for _ in range(size)] for size in sizes]
    return write_shards(folder, train, [moving_clip(5000 + n) for n in range(num_val)])


def _write(folder: Path, number: int, split: str, clips: Sequence[ShardClip]) -> dict[str, object]:
    content = encode_shard(to_table(clips), row_group_bytes=60_000)
    name = f"shards/{split}-{number:02d}.parquet"
    (folder / name).write_bytes(content)
    return shard_mapping(
        ShardInfo(
            name=name,
            split=split,
            num_clips=len(clips),
            num_frames=sum(clip.num_frames for clip in clips),
            num_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
    )


def _stats(clips: Sequence[ShardClip]) -> bytes:
    features = [
        encode_features(
            torch.from_numpy(clip.rot6d), torch.from_numpy(clip.transl), generic_skeleton()
        )
        for clip in clips
    ]
    frames = torch.cat([part for part in features if part.isfinite().all()]).double()
    mean, std = frames.mean(0).numpy(), frames.std(0, unbiased=False).numpy()
    return json.dumps(
        {
            "mean": mean.tolist(),
            "std": std.tolist(),
            "num_frames": len(frames),
            "digest": stats_digest(mean, std),
        }
    ).encode()
