"""Encodes every caption of a dataset once, before training, into the feature store.

The same encoder and the same dispatcher as a render job's encode stage; what differs is where the
features go: to the store, which every rank reads, instead of to the next stage. (Render's stage is
not used itself, since jobs do not know each other.) Knows captions. Knows no clips' motion.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from hymotion_ray.config.text import TextPlacement
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.device import device_of_this_process, set_threads
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.stage import ERROR, ERROR_CODE, Chunk
from hymotion_ray.engine.train.captions import NO_LIMIT
from hymotion_ray.engine.train.examples import clip_texts
from hymotion_ray.engine.train.origin import Origin
from hymotion_ray.errors import TextEncoderError
from hymotion_ray.formats.shard_table import ShardCaption
from hymotion_ray.formats.shards import MANIFEST_FILE, Dataset, open_verified
from hymotion_ray.text.encoder import TextEncoder
from hymotion_ray.text.load import encoder_fingerprint, load_encoder
from hymotion_ray.text.store import FeatureStore

SPLITS = ("train", "val")
_CHUNK = 256
_SCHEMA = pa.schema([("text", pa.string()), (ERROR_CODE, pa.string()), (ERROR, pa.string())])


@dataclass
class StoreStage:
    """Texts of a chunk into the store; those that are there already cost a look."""

    origin: Origin
    placement: TextPlacement
    llm_path: str | None
    clip_path: str | None
    store: str
    encoder: str
    cpu_threads: int
    name: str = "encode"
    _loaded: TextEncoder | None = field(default=None, init=False)

    def setup(self) -> None:
        """Load the encoder."""
        device = device_of_this_process()
        if device == "cpu":
            set_threads(self.cpu_threads)
        base = self.origin.base
        assert base.folder is not None or base.config.text.kind != "static"
        self._loaded = load_encoder(
            base.config.text,
            base.folder or Path(),
            placement=replace(self.placement, device=device),
            llm_path=self.llm_path,
            clip_path=self.clip_path,
            template=base.prompt_template,
            expected_context_dim=base.config.network.ctxt_input_dim,
            expected_vector_dim=base.config.network.vtxt_input_dim,
        )

    def __call__(self, chunk: Chunk) -> Chunk:
        """Encode and store what is not there yet."""
        assert self._loaded is not None, "setup runs before the first call"
        store = FeatureStore(self.store, max_bytes=NO_LIMIT)
        texts = [chunk.column("text")[i] for i in chunk.alive]
        lacking = [text for text in texts if store.get(self.encoder, text) is None]
        if lacking:
            condition = self._loaded.encode(lacking).to("cpu")
            for i, text in enumerate(lacking):
                store.put(self.encoder, text, condition.row(i))
        return chunk


def encoder_name(origin: Origin, config: TrainConfig) -> str:
    """What the store calls the encoder of this run: its fingerprint."""
    base = origin.base
    return encoder_fingerprint(
        base.config.text,
        base.folder or Path(),
        placement=config.text,
        llm_path=config.llm_path,
        clip_path=config.clip_path,
        template=base.prompt_template,
    )


def dataset_texts(dataset: Dataset, mirrors: bool) -> list[str]:
    """Every text that an example of the dataset may ask features for, sorted."""
    texts: set[str] = set()
    for split in SPLITS:
        for shard in dataset.shards(split):
            table = open_verified(dataset, shard).read(columns=["captions"])
            for captions in table["captions"].to_pylist():
                texts.update(clip_texts([ShardCaption(**c) for c in captions], mirrors))
    return sorted(texts)


def encode_captions(
    stage: StoreStage,
    dataset: Dataset,
    mirrors: bool,
    run: Callable[[StoreStage, Iterator[Chunk]], Iterator[pa.Table]],
    say: Callable[[str], None],
) -> int:
    """Bring the features of all captions into the store; returns how many there are.

    run: puts chunks through the stage and yields the items as they come out. A mark in the store
    says that it was done for this dataset. Raises `TextEncoderError` for texts that cannot be
    encoded.
    """
    manifest = dataset.store.read_bytes(MANIFEST_FILE)
    key = hashlib.sha256(manifest + f"{stage.encoder}/{mirrors}".encode()).hexdigest()[:16]
    mark = Path(stage.store) / f"done-{key}.json"
    if mark.exists():
        return int(json.loads(mark.read_bytes())["texts"])
    texts = dataset_texts(dataset, mirrors)
    say(f"encoding {len(texts)} captions once, into {stage.store}")
    failed: list[tuple[str, str]] = []
    for items in run(stage, _chunks(texts)):
        rows = zip(items["text"].to_pylist(), items[ERROR].to_pylist(), strict=True)
        failed += [(text, error) for text, error in rows if error is not None]
    if failed:
        raise TextEncoderError(
            f"{len(failed)} of {len(texts)} captions could not be encoded, the first:"
            f" {failed[0][0]!r:.80}: {failed[0][1]}"
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps({"texts": len(texts)}), "utf-8")
    return len(texts)


def run_here(stage: StoreStage, chunks: Iterator[Chunk]) -> Iterator[pa.Table]:
    """In this process: for encoders that need no model."""
    stage.setup()
    for chunk in chunks:
        yield stage(chunk).items


def run_on_cluster(
    stage: StoreStage, chunks: Iterator[Chunk], *, num_gpus: float, say: Callable[[str], None]
) -> Iterator[pa.Table]:
    """By the dispatcher of render jobs: processes that die are replaced, errors cost one text."""
    from hymotion_ray.engine.dispatch import Dispatcher
    from hymotion_ray.engine.pool import Step

    def size(nodes: Sequence[Node]) -> tuple[int, int]:
        room = sum(node.resources.get("GPU" if num_gpus else "CPU", 0.0) for node in nodes)
        return 1, max(1, int(room))

    step = Step(name="encode", stages=(stage,), size=size, num_cpus=1.0, num_gpus=num_gpus)
    for receipt in Dispatcher([step], say).run(chunks):
        if receipt.failure is not None:
            raise TextEncoderError(f"captions cannot be encoded: {receipt.failure.text}")
        if receipt.finished is not None:
            yield receipt.finished


def _chunks(texts: Sequence[str]) -> Iterator[Chunk]:
    for number, part in enumerate(_batched(texts)):
        nothing = pa.nulls(len(part), pa.string())
        items = pa.table([pa.array(part, pa.string()), nothing, nothing], schema=_SCHEMA)
        yield Chunk(key=f"captions-{number:06d}", items=items)


def _batched(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[i : i + _CHUNK] for i in range(0, len(texts), _CHUNK))
