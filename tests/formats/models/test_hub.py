"""Fetching from a hub, against a stand-in of its HTTP interface on a socket of this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from hymotion_ray.api import load_model
from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.models import hub_transfer
from hymotion_ray.formats.models.checkpoint import read_model
from hymotion_ray.formats.models.hub import HubModel, fetch
from hymotion_ray.formats.models.release import import_release

GOLDEN = Path(__file__).parents[2] / "golden" / "release_like"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "hf:someone/motion/release_like@v1.0"


class StandIn(http.server.ThreadingHTTPServer):
    """A hub with one repository. `cut_after`: close a transfer after so many bytes, once a file."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.requests: list[tuple[str, str | None]] = []
        self.authorizations: set[str | None] = set()
        self.cut_after: int | None = None
        self.cut_once: set[str] = set()
        self.wrong: set[str] = set()
        self.ranges = True
        self.failures = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def listing(self) -> dict[str, object]:
        siblings = []
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            name, data = path.relative_to(self.folder).as_posix(), path.read_bytes()
            entry: dict[str, object] = {"rfilename": name, "size": len(data)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if path.suffix == ".ckpt":
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest()}
            siblings.append(entry)
        return {"sha": COMMIT, "siblings": siblings}


class Handler(http.server.BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        hub = self.server
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append((path, self.headers.get("range")))
        hub.authorizations.add(self.headers.get("authorization"))
        if hub.failures:
            hub.failures -= 1
            self.send_error(503)
        elif re.fullmatch(rf"/api/models/someone/motion/revision/(v1\.0|main|{COMMIT})", path):
            self.reply(200, json.dumps(hub.listing()).encode())
        elif path.startswith(f"/someone/motion/resolve/{COMMIT}/"):
            self.send_file(path.removeprefix(f"/someone/motion/resolve/{COMMIT}/"))
        else:
            self.send_error(404)

    def send_file(self, name: str) -> None:
        hub = self.server
        data = (hub.folder / name).read_bytes()
        if name in hub.wrong:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start, code = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        if asked and hub.ranges:
            start, code = int(asked.group(1)), 206
        body, cut = data[start:], None
        if hub.cut_after is not None and name not in hub.cut_once and len(body) > hub.cut_after:
            hub.cut_once.add(name)
            cut = hub.cut_after
        self.reply(code, body, cut)

    def reply(self, code: int, body: bytes, cut: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    repository = tmp_path / "repository"
    for name in ("config.yml", "latest.ckpt", "stats/Mean.npy", "stats/Std.npy"):
        (repository / "release_like" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(GOLDEN / name, repository / "release_like" / name)
    (repository / "README.md").write_text("a page")
    (repository / "release_like" / "empty.txt").touch()
    monkeypatch.setattr(hub_transfer, "_PAUSE_S", 0.01)
    monkeypatch.setenv("HYMOTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server = StandIn(repository)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def downloads(hub: StandIn) -> list[str]:
    return [Path(path).name for path, _ in hub.requests if "/resolve/" in path]


def test_a_model_is_fetched_once_and_used_without_the_hub(hub: StandIn) -> None:
    folder = fetch(MODEL)
    assert sorted(downloads(hub)) == [
        "Mean.npy",
        "Std.npy",
        "config.yml",
        "empty.txt",
        "latest.ckpt",
    ]
    assert (folder / "latest.ckpt").read_bytes() == (GOLDEN / "latest.ckpt").read_bytes()
    num_requests = len(hub.requests)
    assert fetch(MODEL) == folder
    assert fetch(MODEL, offline=True) == folder
    assert fetch(f"hf:someone/motion/release_like@{COMMIT}", offline=True) == folder
    assert len(hub.requests) == num_requests


def test_the_whole_repository_is_another_snapshot(hub: StandIn) -> None:
    part, whole = fetch(MODEL), fetch("hf:someone/motion")
    assert (whole / "README.md").read_text() == "a page"
    assert not (part.parent / "README.md").exists()
    assert (whole / "release_like" / "config.yml").exists()


def test_loading_and_importing_by_name(hub: StandIn, tmp_path: Path) -> None:
    without_body = read_model(hub.folder / "release_like").fingerprint
    assert load_model(MODEL).fingerprint == without_body
    report = import_release(MODEL, tmp_path / "out")
    assert report.fingerprint == without_body


def test_a_broken_transfer_goes_on_where_it_stopped(hub: StandIn) -> None:
    hub.cut_after = 100_000
    folder = fetch(MODEL)
    ranges = [asked for path, asked in hub.requests if path.endswith("latest.ckpt")]
    assert ranges[0] is None
    assert re.fullmatch(r"bytes=[1-9]\d*-", ranges[1])
    assert len(ranges) == 2
    assert (folder / "latest.ckpt").read_bytes() == (GOLDEN / "latest.ckpt").read_bytes()


def test_a_killed_process_left_a_part_and_the_next_goes_on(hub: StandIn) -> None:
    data = (GOLDEN / "latest.ckpt").read_bytes()
    home = Path(os.environ["HYMOTION_CACHE"]) / "someone--motion"
    left = home / f"{COMMIT}--release_like.partial" / "release_like" / "latest.ckpt.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(data[:500_000])
    folder = fetch(MODEL)
    address = f"/someone/motion/resolve/{COMMIT}/release_like/latest.ckpt"
    assert (address, "bytes=500000-") in hub.requests
    assert (folder / "latest.ckpt").read_bytes() == data
    assert [p.name for p in home.iterdir() if "partial" in p.name] == []


def test_a_server_without_ranges_is_asked_for_all_of_it(hub: StandIn) -> None:
    hub.cut_after, hub.ranges = 100_000, False
    folder = fetch(MODEL)
    assert (folder / "latest.ckpt").read_bytes() == (GOLDEN / "latest.ckpt").read_bytes()


@pytest.mark.parametrize("name", ["latest.ckpt", "config.yml"])
def test_a_wrong_hash_is_refused_and_leaves_no_model(hub: StandIn, name: str) -> None:
    hub.wrong.add(f"release_like/{name}")
    with pytest.raises(CheckpointError, match=rf"{name} came with .* the hub says"):
        fetch(MODEL)
    home = Path(os.environ["HYMOTION_CACHE"]) / "someone--motion"
    assert not (home / f"{COMMIT}--release_like").exists()
    assert list(home.rglob(f"{name}*")) == []
    hub.wrong.clear()
    assert (fetch(MODEL) / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_a_busy_server_is_asked_again(hub: StandIn) -> None:
    hub.failures = 3
    assert (fetch(MODEL) / "config.yml").exists()


def test_a_server_that_stays_busy_is_given_up(hub: StandIn) -> None:
    hub.failures = 1000
    with pytest.raises(CheckpointError, match=r"cannot be fetched after 5 tries.*answered 503"):
        fetch(MODEL)


def test_the_token_is_sent(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(MODEL)
    assert hub.authorizations == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("model", "match"),
    [
        ("hf:someone/other", "no such repository"),
        ("hf:someone/motion/nothing", "no folder 'nothing'; it holds README.md, release_like"),
        ("hf:someone", "is no model of a hub; allowed: hf:OWNER/NAME"),
        ("hf:someone/motion/../x", "is no model of a hub"),
        ("hf:someone/motion@../x", "is no model of a hub"),
        ("hf:../motion", "is no model of a hub"),
        ("hf:./.", "is no model of a hub"),
        ("hf:https://huggingface.co/someone/motion", "is no model of a hub"),
    ],
)
def test_names_that_are_no_model(hub: StandIn, model: str, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        fetch(model)


def test_a_listing_that_leaves_its_folder_is_refused(hub: StandIn) -> None:
    entry = {"rfilename": "../../../evil", "size": 0, "blobId": "0"}
    hub.listing = lambda: {"sha": COMMIT, "siblings": [entry]}  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="outside its folder"):
        fetch("hf:someone/motion")


@pytest.mark.parametrize(
    "listing",
    [{"hello": 1}, [], {"sha": "../../evil", "siblings": []}, {"sha": COMMIT, "siblings": [3]}],
)
def test_an_answer_that_is_no_hub(hub: StandIn, listing: object) -> None:
    hub.listing = lambda: listing  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(CheckpointError, match="did not answer like a Hugging Face hub"):
        fetch(MODEL)


@pytest.mark.parametrize("endpoint", ["x", "huggingface.co", "ftp://host", "http://"])
def test_an_endpoint_that_is_no_url(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(CheckpointError, match="HF_ENDPOINT is"):
        fetch(MODEL, cache=tmp_path, endpoint=endpoint, offline=False)


def test_a_cache_that_cannot_be_written_names_the_setting(hub: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot be kept in the cache .*HYMOTION_CACHE"):
        fetch(MODEL, cache=tmp_path / "file")


def test_offline_without_a_cache_says_so(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"not in the cache .*HF_HUB_OFFLINE"):
        fetch(MODEL)
    assert hub.requests == []


def test_many_processes_fetch_once(hub: StandIn) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        folders = set(pool.map(fetch, [MODEL] * 3))
    assert len(folders) == 1
    assert downloads(hub).count("latest.ckpt") == 1


def test_no_network_is_touched_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a connection was tried: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_model(GOLDEN)
    with pytest.raises(CheckpointError):
        load_model("someone/motion")


def test_a_local_model_loads_no_client_and_no_ray() -> None:
    code = (
        "import sys, hymotion_ray as hm; "
        "hm.load_model('tiny').encode(['jump']); "
        "heavy = {'httpx', 'huggingface_hub', 'ray', 'transformers', 'accelerate'}; "
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_specs_parse() -> None:
    assert HubModel.parse("hf:a/b") == HubModel(repo="a/b", subfolder="", revision="main")
    assert HubModel.parse("hf:a/b/c/d@refs/pr/1") == HubModel(
        repo="a/b", subfolder="c/d", revision="refs/pr/1"
    )
