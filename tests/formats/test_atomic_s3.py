"""Prompts from and outputs to an S3 service: a local one that counts requests and can fail."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import moto_app, serving
from pyarrow import fs
from werkzeug.wrappers import Request, Response

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats import atomic, locations
from hymotion_ray.formats.atomic import open_store, read_bytes, write_bytes
from hymotion_ray.formats.prompts import read_prompts


class Service:
    """moto's S3 behind a gate that notes every request and refuses as many as it is told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.num_refusals = 0
        self.refusal = Response("busy", status=503)

    def __call__(self, environ, start_response):
        request = Request(environ)
        self.requests.append((request.method, request.full_path.rstrip("?")))
        if self.num_refusals:
            self.num_refusals -= 1
            request.get_data()
            return self.refusal(environ, start_response)
        return moto_app(environ, start_response)


@pytest.fixture(name="service")
def s3_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(atomic, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    service = Service()
    with serving(monkeypatch, "bucket", service):
        service.requests.clear()
        yield service


def test_outputs(service):
    store = open_store("s3://bucket/run 1/out#/")
    store.write_bytes("motions/a_s0.npz", b"1")
    store.write_bytes("manifest/part-0.parquet", b"2")
    store.write_bytes("走.bin", b"")
    assert store.read_bytes("motions/a_s0.npz") == b"1"
    assert store.exists("motions/a_s0.npz")
    assert not store.exists("motions")
    assert not store.exists("motions/b_s0.npz")
    assert store.list_files() == ["manifest/part-0.parquet", "motions/a_s0.npz", "走.bin"]
    assert store.list_files("manifest", suffix=".parquet") == ["manifest/part-0.parquet"]
    assert store.list_files("nowhere") == []
    assert len(store.list_files(limit=1)) == 1
    assert store.url("a") == "s3://bucket/run 1/out#/a"
    store.remove("motions/a_s0.npz")
    store.remove("motions/a_s0.npz")
    assert store.list_files("motions") == []
    assert store.remove_leftovers() == 0


def test_a_file_is_one_put(service):
    open_store("s3://bucket/out").write_bytes("motions/g/a_s0.npz", b"x" * 2_000_000)
    assert service.requests == [("PUT", "/bucket/out/motions/g/a_s0.npz")]


def test_large_files_appear_when_they_are_complete(service):
    data = bytes(range(256)) * 60_000
    write_bytes("s3://bucket/shards/part-0.parquet", data)
    assert read_bytes("s3://bucket/shards/part-0.parquet") == data
    assert any("uploads" in path for _, path in service.requests)


def test_errors_that_pass_are_tried_again(service):
    store = open_store("s3://bucket/out")
    service.num_refusals = 2
    store.write_bytes("a", b"1")
    service.num_refusals = 2
    assert store.read_bytes("a") == b"1"
    service.num_refusals = 2
    assert store.exists("a")


def test_an_outage_ends_in_an_error_that_names_the_place(service, monkeypatch):
    monkeypatch.setattr(locations, "REQUEST_ATTEMPTS", 2)
    locations._s3_client.cache_clear()
    service.num_refusals = 10**6
    try:
        with pytest.raises(
            OutputError, match=r"s3://bucket/out/a cannot be written.*tried 4 times"
        ):
            open_store("s3://bucket/out").write_bytes("a", b"1")
    finally:
        service.num_refusals = 0
        locations._s3_client.cache_clear()
    assert not open_store("s3://bucket/out").exists("a")


def test_missing_rights_and_buckets_fail_at_once(service):
    with pytest.raises(OutputError, match="check that the path or bucket exists"):
        open_store("s3://no-such-bucket/out").write_bytes("a", b"1")
    num_requests = len(service.requests)
    service.refusal, busy = Response("", status=403), service.refusal
    service.num_refusals = 1
    with pytest.raises(OutputError, match="no permission"):
        open_store("s3://bucket/out").write_bytes("a", b"1")
    service.refusal = busy
    assert len(service.requests) == num_requests + 1


def test_prompts_of_every_form(service):
    write_bytes("s3://bucket/prompts/a.txt", b"walk#60#a\nI am #1\n")
    write_bytes("s3://bucket/prompts/b.TXT.GZ", gzip.compress(b"run#60#b\n"))
    write_bytes("s3://bucket/prompts/sub/c.json", b'{"g": ["jump#60#c"]}')
    write_bytes("s3://bucket/prompts/sub/d.jsonl", b'{"id": "d", "text": "sit"}\n')
    write_bytes("s3://bucket/prompts/e #1.csv", b"id,text\ne,wave\n")
    write_bytes("s3://bucket/prompts/.hidden.txt", b"walk\n")
    write_bytes("s3://bucket/prompts/notes.md", b"walk\n")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["f"], "text": ["bow"]}), sink)
    write_bytes("s3://bucket/prompts/f.parquet", sink.getvalue().to_pybytes())
    table = read_prompts("s3://bucket/prompts/")
    assert [row.prompt_id for row in table.rows] == ["a", "b", "e", "f", "c", "d"]
    assert table.rows[2].file == "s3://bucket/prompts/e #1.csv"
    assert [reject.code for reject in table.rejects] == ["ambiguous_length"]
    assert any("files of other kinds: 1" in warning for warning in table.warnings)
    for pattern, ids in [
        ("s3://bucket/prompts/*.txt", ["a"]),
        ("s3://bucket/prompts/**/*.js*", ["c", "d"]),
        ("s3://bucket/*/[ab].*", ["a", "b"]),
        ("s3://bucket/prompts/e #1.csv", ["e"]),
    ]:
        assert [row.prompt_id for row in read_prompts(pattern).rows] == ids


def test_prompt_places_that_do_not_exist(service):
    with pytest.raises(InputError, match="no such file"):
        read_prompts("s3://bucket/nowhere.txt")
    with pytest.raises(InputError, match="matches nothing"):
        read_prompts("s3://bucket/*.txt")
    with pytest.raises(InputError, match="name the bucket in full"):
        read_prompts("s3://*/p.txt")
    with pytest.raises(InputError, match=r"no such file|cannot be reached"):
        read_prompts("s3://no-such-bucket/p.txt")


def test_the_store_serves_readers_that_take_a_file_system(service):
    store = open_store("s3://bucket/out")
    assert isinstance(store.filesystem, fs.S3FileSystem)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1, 2]}), sink)
    store.write_bytes("t.parquet", sink.getvalue().to_pybytes())
    table = pq.read_table(store.path("t.parquet"), filesystem=store.filesystem)
    assert table.to_pydict() == {"x": [1, 2]}
