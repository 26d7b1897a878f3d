"""Small real things to evaluate: bodies that walk, jump or stand, as files and as a dataset."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from hymotion_ray.formats.motions import save_motion
from hymotion_ray.formats.shard_table import ShardCaption, ShardClip, encode_shard, to_table
from hymotion_ray.formats.shards import ShardInfo, shard_mapping
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import generic_skeleton

FPS = 30
PROMPTS = {"a person walks forward": "walk", "he leaps into the air": "jump"}


def standing(num_frames: int = 150) -> Motion:
    """A body with its arms down, its soles on the floor."""
    skeleton = generic_skeleton()
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(num_frames, 22, 1)
    rot6d[:, 16] = torch.tensor([0.25, 0.968, -0.968, 0.25, 0, 0])
    rot6d[:, 17] = torch.tensor([0.25, -0.968, 0.968, 0.25, 0, 0])
    height = skeleton.toe_height - float(skeleton.rest[[10, 11], 1].min())
    transl = torch.tensor([0.0, height, 0.0]).repeat(num_frames, 1)
    return Motion.from_rotations(rot6d, transl, skeleton, FPS)


def doing(action: str, num_frames: int = 150, prompt: str = "", seed: int = 0) -> Motion:
    """A clip that passes the test of walk, jump or (anything else) of none."""
    still = standing(num_frames)
    seconds = torch.arange(num_frames) / FPS
    offset = torch.zeros(num_frames, 3)
    if action == "walk":
        offset[:, 2] = (1.0 + 0.05 * seed) * seconds
    elif action == "jump":
        offset[num_frames // 3 : num_frames // 3 + 9, 1] = 0.4
    else:
        offset[:, 0] = 0.01 * torch.sin(seconds + seed)
    meta = {"prompt": prompt, "seed": seed} if prompt else {}
    return Motion.from_rotations(still.rot6d, still.transl + offset, still.skeleton, FPS, meta)


def write_folder(folder: Path, num_seeds: int = 2) -> Path:
    """Clips of both prompts: of each, the first seed does what it asks for, the others stand."""
    folder.mkdir(parents=True)
    for number, (prompt, action) in enumerate(PROMPTS.items()):
        for seed in range(num_seeds):
            clip = doing(action if seed == 0 else "stand", prompt=prompt, seed=seed)
            save_motion(clip, folder / f"{number}_s{seed}.npz")
    return folder


def write_prompts(path: Path) -> Path:
    """The prompts with their actions."""
    path.write_text("prompt,action\n" + "".join(f"{p},{a}\n" for p, a in PROMPTS.items()))
    return path


def write_dataset(folder: Path, clips: dict[str, tuple[Motion, tuple[str, ...]]], per: int) -> Path:
    """A dataset with `per` clips a shard: (motion, captions) by name."""
    (folder / "shards").mkdir(parents=True)
    held = list(clips.items())
    rows = []
    for number, start in enumerate(range(0, len(held), per)):
        part = [_shard_clip(name, *clip) for name, clip in held[start : start + per]]
        content = encode_shard(to_table(part), row_group_bytes=40_000)
        name = f"shards/train-{number:02d}.parquet"
        (folder / name).write_bytes(content)
        info = ShardInfo(
            name=name,
            split="train",
            num_clips=len(part),
            num_frames=sum(clip.num_frames for clip in part),
            num_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        rows.append(shard_mapping(info))
    manifest = {
        "schema_version": 1,
        "skeleton": generic_skeleton().rest.ravel().tolist(),
        "shards": rows,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _shard_clip(name: str, motion: Motion, captions: tuple[str, ...]) -> ShardClip:
    return ShardClip(
        clip_id=name,
        split_group=name,
        source="made up",
        licence="CC0-1.0",
        fps_src=30.0,
        transl=motion.transl.numpy(),
        rot6d=motion.rot6d.numpy(),
        source_leg_length=None,
        scale=1.0,
        pelvis_offset=None,
        captions=tuple(ShardCaption(text, 0.0, motion.duration) for text in captions),
    )
