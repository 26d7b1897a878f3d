from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hymotion_ray.engine import faults, manifest
from hymotion_ray.engine.settle import settle_rows
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def row(number: int, status: str = "done") -> dict[str, object]:
    return {"id": f"i{number}", "group": "", "seed": 0, "stem": f"i{number}_s0", "status": status}


def ids(store: Store) -> list[str]:
    return sorted(r["id"] for b in manifest.read_batches(store) for r in b.to_pylist())


def test_rows_come_back_with_every_column(store: Store) -> None:
    manifest.write_part(store, "a", [row(0) | {"skate": 0.5, "text": "x"}])
    (batch,) = manifest.read_batches(store)
    assert batch.schema.names == manifest.SCHEMA.names
    assert batch.to_pylist()[0]["skate"] == 0.5


def test_a_chunk_written_twice_is_one_part(store: Store) -> None:
    manifest.write_part(store, "a", [row(0)])
    manifest.write_part(store, "a", [row(0)])
    assert ids(store) == ["i0"]


def test_merging_keeps_every_row_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_MERGED_ROWS", 7)
    for n in range(25):
        manifest.write_part(store, f"{n:03d}", [row(n)])
    manifest.merge_parts(store, manifest.single_parts(store))
    assert ids(store) == sorted(f"i{n}" for n in range(25))
    assert len(store.list_files("manifest")) == 4
    assert manifest.count_rows(store) == 25
    assert manifest.single_parts(store) == []


@pytest.mark.parametrize("at", ["merged:1", "merge-removed:1", "merge-removed:3", "rename:1"])
def test_a_merge_cut_off_anywhere_leaves_every_row_once(
    store: Store, at: str, tmp_path: Path
) -> None:
    for n in range(5):
        manifest.write_part(store, str(n), [row(n)])
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "plan").write_text(f"{at}:raise\n")
    faults.use(str(tmp_path / "faults"))
    try:
        with pytest.raises(RuntimeError, match="on purpose"):
            manifest.merge_parts(store, manifest.single_parts(store))
    finally:
        faults.use(None)
    assert ids(store) == [f"i{n}" for n in range(5)]
    manifest.remove_replaced(store)
    assert ids(store) == [f"i{n}" for n in range(5)]
    manifest.merge_parts(store, manifest.single_parts(store))
    assert ids(store) == [f"i{n}" for n in range(5)]
    assert len(store.list_files("manifest")) == 1


def test_a_merged_part_that_is_rewritten_still_names_what_it_replaced(store: Store) -> None:
    manifest.write_part(store, "a", [row(0)])
    manifest.write_part(store, "b", [row(1)])
    left = store.read_bytes("manifest/part-b.parquet")
    manifest.merge_parts(store, manifest.single_parts(store))
    (name,) = manifest.part_names(store)
    store.write_bytes("manifest/part-b.parquet", left)
    manifest.rewrite_part(store, name, [row(0), row(1) | {"formats": "npz,bvh"}])
    assert ids(store) == ["i0", "i1"]


def test_settling_leaves_the_last_word_on_each_item(store: Store, tmp_path: Path) -> None:
    def attempt(number: int, status: str, n: int) -> dict[str, object]:
        return row(number, status) | {"attempt": n}

    manifest.write_part(store, "a", [attempt(0, "failed", 1), attempt(1, "done", 1)])
    manifest.write_part(store, "b", [attempt(0, "done", 2), attempt(2, "failed", 1)])
    manifest.write_part(store, "c", [attempt(1, "done", 1), attempt(2, "failed", 2)])
    manifest.write_part(store, "d", [attempt(0, "failed", 3)])
    assert settle_rows(store, tmp_path / "scratch") == 4
    rows = {r["id"]: r for b in manifest.read_batches(store) for r in b.to_pylist()}
    assert manifest.count_rows(store) == len(rows) == 3
    assert {i: (r["status"], r["attempt"]) for i, r in rows.items()} == {
        "i0": ("done", 2),
        "i1": ("done", 1),
        "i2": ("failed", 2),
    }
    assert "manifest/part-d.parquet" not in store.list_files()
    assert settle_rows(store, tmp_path / "scratch") == 0


def test_a_damaged_part_is_named(store: Store) -> None:
    manifest.write_part(store, "a", [row(0)])
    store.write_bytes("manifest/part-a.parquet", b"PAR1 not really")
    with pytest.raises(OutputError, match=r"part-a\.parquet is not readable"):
        ids(store)


def test_another_schema_version_is_refused(store: Store, tmp_path: Path) -> None:
    manifest.write_part(store, "a", [row(0)])
    path = tmp_path / "manifest" / "part-a.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"hymotion_ray.manifest": "99"}), path)
    with pytest.raises(OutputError, match="schema version 99"):
        ids(store)
