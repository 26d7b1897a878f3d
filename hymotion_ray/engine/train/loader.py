"""One rank's share of the global batch at a position of the stream. Ray-free.

A loader is made from a `LoaderSpec`, a small value that travels to any process; the same spec and
position give the same bits wherever they are loaded. Knows which rows are this rank's and how they
fall into micro-batches. Knows no threads and no training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from hymotion_ray.engine.train.captions import CaptionFeatures
from hymotion_ray.engine.train.clip_reader import ClipReader
from hymotion_ray.engine.train.clip_windows import ClipFeatures
from hymotion_ray.engine.train.examples import Example, ExampleRules, make_example
from hymotion_ray.engine.train.micro_batch import MicroBatch, collate
from hymotion_ray.engine.train.order import StreamOrder, row_shares
from hymotion_ray.formats.shards import open_dataset


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """What a loader needs."""

    data: str
    """Folder or URL of the dataset."""
    split: str
    global_batch: int
    """Clips a step over all ranks."""
    micro_batch: int
    """Clips that the rank of the largest share computes at once."""
    shares: tuple[float, ...]
    """Weight of each rank."""
    rank: int
    rules: ExampleRules
    feature_store: str
    encoder: str
    """Name of the encoder in the store."""

    def for_validation(self) -> LoaderSpec:
        """The same clips each time, as they are: nothing mirrored, cut, dropped or noisy."""
        data = replace(self.rules.data, mirror=0.0, crop=0.0)
        objective = replace(self.rules.objective, text_noise=0.0)
        rules = replace(self.rules, seed=0, data=data, objective=objective, cond_mask_prob=0.0)
        return replace(self, rules=rules)


class BatchLoader:
    """Loads the micro-batches of one rank."""

    def __init__(self, spec: LoaderSpec) -> None:
        """Opens the dataset; `InputError` when there is none."""
        self.spec = spec
        data = spec.rules.data
        dataset = open_dataset(spec.data)
        shards = {shard.name: shard.num_clips for shard in dataset.shards(spec.split)}
        self.order = StreamOrder(shards, seed=spec.rules.seed, window=data.window)
        self._reader = ClipReader(dataset, spec.split, data.cache_mb << 20)
        self._whole = ClipFeatures(spec.rules, data.cache_mb << 20)
        self._captions = CaptionFeatures(spec.feature_store, spec.encoder)
        spans = row_shares(spec.global_batch, spec.shares)
        self._first, self._end = spans[spec.rank]
        self.num_micro = -(-max(end - first for first, end in spans) // spec.micro_batch)
        """Forward passes a step, the same on every rank."""

    def load(self, position: int) -> list[MicroBatch]:
        """The rank's micro-batches of the global batch that begins at `position`.

        Rows are sorted by length first, so that a micro-batch is padded little. Raises `InputError`
        for damaged shards.
        """
        examples = [self.example(position + row) for row in range(self._first, self._end)]
        examples.sort(key=lambda e: len(e.x))
        if len(examples) < self.num_micro:  # every rank takes part in every pass
            filler = (examples or [self.example(position)])[0]._replace(weight=0.0, clip_id="")
            examples += [filler] * (self.num_micro - len(examples))
        bounds = [len(examples) * k // self.num_micro for k in range(self.num_micro + 1)]
        data = self.spec.rules.data
        return [
            collate(examples[a:b], data.frame_buckets, data.token_multiple)
            for a, b in pairwise(bounds)
        ]

    def example(self, position: int) -> Example:
        """The example at one position of the stream."""
        place = self.order.place(position)
        clip = self._reader.clip(place.shard, place.row)
        return make_example(clip, position, self.spec.rules, self._captions, self._whole)
