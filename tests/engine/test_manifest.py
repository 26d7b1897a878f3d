from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hymotion_ray.engine import manifest
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
    monkeypatch.setattr(manifest, "_MERGE_ABOVE", 10)
    monkeypatch.setattr(manifest, "_MERGED_ROWS", 7)
    for n in range(25):
        manifest.write_part(store, f"{n:03d}", [row(n)])
    manifest.merge_parts(store)
    assert ids(store) == sorted(f"i{n}" for n in range(25))
    assert len(manifest.part_names(store)) == 4


def test_few_parts_are_left_alone(store: Store) -> None:
    manifest.write_part(store, "a", [row(0)])
    manifest.merge_parts(store)
    assert manifest.part_names(store) == ["manifest/part-a.parquet"]


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
