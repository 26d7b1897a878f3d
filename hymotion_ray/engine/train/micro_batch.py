"""Examples side by side: padded tensors of one forward pass, and their form on the wire.

Knows padding to buckets. Knows no clips, files or network.

Shapes: B rows, L frames of the bucket, N text tokens of the bucket, C and V text widths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from hymotion_ray.engine.train.examples import Example


class MicroBatch(NamedTuple):
    """Rows of one forward and backward pass."""

    x: Tensor
    """(B, L, 201) fp32, 0 past a row's end."""
    length: Tensor
    """(B,) int64 frames."""
    context: Tensor
    """(B, N, C) fp32."""
    vector: Tensor
    """(B, 1, V) fp32."""
    context_length: Tensor
    """(B,) int64 tokens."""
    noise: Tensor
    """(B, L, 201) fp32."""
    t: Tensor
    """(B,) fp32."""
    drop: Tensor
    """(B,) bool."""
    weight: Tensor
    """(B,) fp32: 1, or 0 for a row that fills up or is not finite."""
    clip_ids: tuple[str, ...]
    bad_ids: tuple[str, ...]
    """Clips that are not finite."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What `FlowModel` takes."""
        return (
            self.x, self.length, self.context, self.vector,
            self.context_length, self.noise, self.t, self.drop,
        )  # fmt: skip

    def moved(self, device: torch.device) -> MicroBatch:
        """The same on `device`; from pinned memory without waiting."""
        tensors = (part.to(device, non_blocking=True) for part in self[:9])
        return MicroBatch._make((*tensors, self.clip_ids, self.bad_ids))

    def pinned(self) -> MicroBatch:
        """The same in memory that a GPU copies from by itself."""
        pinned = (part.pin_memory() for part in self[:9])
        return MicroBatch._make((*pinned, self.clip_ids, self.bad_ids))


def collate(
    examples: Sequence[Example], frame_buckets: Sequence[int], token_multiple: int
) -> MicroBatch:
    """Rows padded to the first bucket that holds the longest; at least one token."""
    longest = max(len(e.x) for e in examples)
    num_frames = next((b for b in frame_buckets if b >= longest), longest)
    most_tokens = max(1, *(len(e.context) for e in examples))
    num_tokens = -(-most_tokens // token_multiple) * token_multiple
    return MicroBatch(
        x=_stacked([e.x for e in examples], num_frames),
        length=torch.tensor([len(e.x) for e in examples]),
        context=_stacked([e.context for e in examples], num_tokens),
        vector=torch.stack([e.vector for e in examples])[:, None],
        context_length=torch.tensor([len(e.context) for e in examples]),
        noise=_stacked([e.noise for e in examples], num_frames),
        t=torch.tensor([e.t for e in examples], dtype=torch.float32),
        drop=torch.tensor([e.drop for e in examples]),
        weight=torch.tensor([e.weight for e in examples], dtype=torch.float32),
        clip_ids=tuple(e.clip_id for e in examples),
        bad_ids=tuple(e.clip_id for e in examples if not e.weight and e.clip_id),
    )


def pack(batches: Sequence[MicroBatch]) -> bytes:
    """Micro-batches as one safetensors value."""
    tensors = {
        f"{i}.{name}": part.contiguous()
        for i, batch in enumerate(batches)
        for name, part in zip(MicroBatch._fields[:9], batch[:9], strict=True)
    }
    ids = json.dumps([[batch.clip_ids, batch.bad_ids] for batch in batches])
    return save(tensors, {"ids": ids})


def unpack(content: bytes) -> list[MicroBatch]:
    """What `pack` packed, to the bit."""
    tensors = load(content)
    size = int.from_bytes(content[:8], "little")
    ids = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["ids"])
    return [
        MicroBatch._make(
            (
                *(tensors[f"{i}.{name}"] for name in MicroBatch._fields[:9]),
                tuple(clip_ids),
                tuple(bad_ids),
            )
        )
        for i, (clip_ids, bad_ids) in enumerate(ids)
    ]


def _stacked(parts: Sequence[Tensor], size: int) -> Tensor:
    """Parts (L, F) of unequal lengths as (B, size, F), zeros past their ends."""
    stacked = parts[0].new_zeros(len(parts), size, parts[0].shape[1])
    for i, part in enumerate(parts):
        stacked[i, : len(part)] = part
    return stacked
