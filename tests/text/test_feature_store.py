"""Stored features are the same bits, stay under the cap, and survive damage and company."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from hymotion_ray.config import TextConfig
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.text.condition import TextRow
from hymotion_ray.text.load import load_encoder
from hymotion_ray.text.store import FeatureStore, StoringEncoder

ASSETS = model_folder("tiny")
TEXTS = ["a person walks", "jump", "走路", "", "kick " * 200]


def some_row(seed: int, tokens: int = 8) -> TextRow:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(tokens, 16, generator=generator).bfloat16()
    return TextRow(context=context, vector=torch.randn(4, generator=generator))


def files(store):
    return sorted(store.folder.rglob("*.safetensors"))


def test_what_is_put_comes_back_to_the_bit(tmp_path):
    store = FeatureStore(tmp_path / "new" / "store")
    row = TextRow(context=some_row(0).context, vector=torch.ones(4), vector_truncated=True)
    assert store.get("encoder", "jump") is None
    store.put("encoder", "jump", row)
    back = FeatureStore(store.folder).get("encoder", "jump")
    assert back.context.dtype == torch.bfloat16
    assert torch.equal(back.context, row.context)
    assert torch.equal(back.vector, row.vector)
    assert (back.context_truncated, back.vector_truncated) == (False, True)
    assert store.get("encoder", "jump ") is None
    assert store.get("another encoder", "jump") is None


def test_the_cap_holds_and_the_least_used_goes_first(tmp_path):
    store = FeatureStore(tmp_path)
    store.put("e", "0", some_row(0))
    size = files(store)[0].stat().st_size
    store = FeatureStore(tmp_path, max_bytes=10 * size)
    for i in range(1, 10):
        store.put("e", str(i), some_row(i))
        time.sleep(0.01)
    assert store.get("e", "0") is not None  # now the last used
    for i in range(10, 14):
        store.put("e", str(i), some_row(i))
        time.sleep(0.01)
        assert sum(path.stat().st_size for path in files(store)) <= 10 * size
    assert store.get("e", "0") is not None
    assert store.get("e", "13") is not None
    assert store.get("e", "1") is None


def test_what_is_larger_than_the_store_is_left_out(tmp_path):
    store = FeatureStore(tmp_path, max_bytes=1000)
    store.put("e", "long", some_row(0, tokens=500))
    assert files(store) == []


@pytest.mark.parametrize("damage", [b"", b"version https://git-lfs", b"\xff" * 500])
def test_a_damaged_file_is_a_miss_and_goes(tmp_path, damage):
    store = FeatureStore(tmp_path)
    store.put("e", "jump", some_row(0))
    path = files(store)[0]
    path.write_bytes(damage)
    assert store.get("e", "jump") is None
    assert not path.exists()
    store.put("e", "jump", some_row(0))
    path.write_bytes(path.read_bytes()[:-3])
    assert store.get("e", "jump") is None


def test_leftovers_of_a_dead_process_go(tmp_path):
    store = FeatureStore(tmp_path)
    store.put("e", "jump", some_row(0))
    folder = files(store)[0].parent
    old, fresh = folder / ".old.tmp", folder / ".fresh.tmp"
    for path in (old, fresh):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    store.evict()
    assert (old.exists(), fresh.exists()) == (False, True)


def test_several_processes_share_a_small_store(tmp_path):
    code = (
        "import os, torch\n"
        "from hymotion_ray.text.condition import TextRow\n"
        "from hymotion_ray.text.store import FeatureStore\n"
        "child = os.fork()\n"
        f"store = FeatureStore({str(tmp_path)!r}, max_bytes=6000)\n"
        "for i in range(150):\n"
        "    name = str(i % 20)\n"
        "    row = store.get('e', name)\n"
        "    if row is None:\n"
        "        value = float(name)\n"
        "        context, vector = torch.full((8, 16), value), torch.full((4,), value)\n"
        "        store.put('e', name, TextRow(context=context, vector=vector))\n"
        "    else:\n"
        "        assert (row.context == float(name)).all()\n"
        "assert not child or os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    store = FeatureStore(tmp_path, max_bytes=6000)
    assert store.evict() <= 6000
    assert list(tmp_path.rglob("*.tmp")) == []


def test_an_encoder_with_a_store_gives_the_same_bits_and_encodes_once(tmp_path):
    encoder = load_encoder(TextConfig(kind="static"), ASSETS)
    asked: list[str] = []

    class Counting(type(encoder)):
        def encode(self, texts):
            asked.extend(texts)
            return super().encode(texts)

    counted = Counting(ASSETS / "text")
    plain = encoder.encode(TEXTS)
    for _ in range(2):
        stored = StoringEncoder(counted, FeatureStore(tmp_path)).encode([*TEXTS, *TEXTS])
        assert torch.equal(stored.context, plain.select([*range(5), *range(5)]).context)
        assert torch.equal(stored.vector[:5], plain.vector)
        assert stored.length[:5].tolist() == plain.length.tolist()
        assert stored.truncated[:5] == plain.truncated
        assert asked == TEXTS
    assert len(StoringEncoder(counted, FeatureStore(tmp_path)).encode([])) == 0


def test_a_store_that_cannot_be_written_costs_no_features(tmp_path, caplog):
    encoder = load_encoder(TextConfig(kind="static"), ASSETS)
    store = FeatureStore(tmp_path / "store")
    storing = StoringEncoder(encoder, store)
    store.folder.rmdir()
    store.folder.write_bytes(b"a file where the folder was")
    got = storing.encode(TEXTS)
    assert torch.equal(got.context, encoder.encode(TEXTS).context)
    assert len([r for r in caplog.records if "no longer stored" in r.message]) == 1
    with pytest.raises(OutputError, match="cannot be made"):
        FeatureStore(tmp_path / "store")
    with pytest.raises(OutputError, match="allowed: above 0"):
        FeatureStore(tmp_path / "other", max_bytes=0)
