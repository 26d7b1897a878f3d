"""The client against a server that is busy, breaks off, refuses, or is not there."""

from __future__ import annotations

import http.server
import json
import pickle
import threading
import time
from collections.abc import Iterator

import pytest

from hymotion_ray.client import Client
from hymotion_ray.errors import OutputError, ServiceError

VIEW = {"id": "a", "state": "succeeded", "seeds": [4, 5], "progress": 1.0}
VIEW["clips"] = [{"seed": 4, "state": "succeeded"}, {"seed": 5, "state": "succeeded"}]


class Scripted(http.server.ThreadingHTTPServer):
    """Answers in turn: (status, headers, body) or None, which breaks the connection off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], bytes] | None] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes, float]] = []

    def then(self, status: int, body: object = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append((status, named, content))

    def then_break(self) -> None:
        self.answers.append(None)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Scripted

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(
            (self.command, self.path, dict(self.headers), body, time.monotonic())
        )
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = _answer  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    running = Scripted()
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def client(server: Scripted) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{server.server_port}/", "hmr_secret", patience_s=20) as one:
        yield one


def refused(code: str, message: str, **more: object) -> dict[str, object]:
    return {"error": {"code": code, "message": message, **more}, "request_id": "r"}


def test_a_busy_server_is_asked_again_when_it_says_under_the_same_id(server, client):
    server.then(429, refused("queue_full", "full"), Retry_After="1")
    server.then_break()
    server.then(202, {**VIEW, "state": "queued"})
    job = client.submit("a person walks", duration=5, seeds=[4, 5])
    assert (job.id, job.state) == ("a", "queued")
    first, _, last = server.seen
    assert {one[:2] for one in server.seen} == {first[:2]}
    assert first[0] == "PUT"
    assert 1.0 <= server.seen[1][4] - first[4] < 1.9
    assert json.loads(last[3]) == {"text": "a person walks", "duration": 5, "seeds": [4, 5]}
    assert last[2]["Authorization"] == "Bearer hmr_secret"
    assert last[2]["Prefer"] == "respond-async"


def test_what_cannot_be_served_is_not_asked_twice(server, client):
    faults = [{"field": "duration", "message": "must be above 0"}]
    server.then(422, refused("invalid", "the request is not valid", fields=faults))
    with pytest.raises(ServiceError, match=r"duration: must be above 0") as caught:
        client.submit("a person walks", duration=-1)
    assert (caught.value.code, caught.value.status) == ("invalid", 422)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (str(caught.value), "invalid")
    server.then(401, b"<html>no key</html>")
    with pytest.raises(ServiceError, match="401"):
        client.models()
    assert len(server.seen) == 2
    assert "hmr_secret" not in repr(caught.value) + repr(client.__dict__)


def test_patience_ends(server):
    url = f"http://127.0.0.1:{server.server_port}"
    with Client(url, patience_s=1.0) as hasty:
        server.then(503, refused("not_ready", "the model is loading"), Retry_After="30")
        with pytest.raises(ServiceError, match="loading"):
            hasty.models()
    with Client("http://127.0.0.1:9", patience_s=0.2) as lost, pytest.raises(ServiceError) as e:
        lost.models()
    assert e.value.code == "lost"


def test_a_job_is_followed_through_a_broken_stream(server, client):
    def event(**news):
        return f"event: x\ndata: {json.dumps({**VIEW, **news})}\n\n".encode()

    server.then(200, {**VIEW, "state": "queued", "progress": 0.0})
    server.then(200, {**VIEW, "state": "queued", "progress": 0.0})
    server.then(200, event(state="running", progress=0.5))
    server.then(200, {**VIEW, "state": "running", "progress": 0.6})
    server.then(200, event(state="running", progress=0.7) + event(progress=1.0))
    seen = [job.progress for job in client.job("a").updates()]
    assert seen == [0.0, 0.5, 0.6, 0.7, 1.0]


def test_a_job_that_failed_says_why_and_one_that_takes_long_goes_on(server, client):
    failed = {**VIEW, "state": "failed", "error": {"code": "nan", "message": "not finite"}}
    server.then(200, failed)
    server.then(200, failed)
    with pytest.raises(ServiceError, match="not finite") as caught:
        client.job("a").wait()
    assert caught.value.code == "failed"
    running = {**VIEW, "state": "running"}
    for answer in (running, running, b""):
        server.then(200, answer)
    with pytest.raises(ServiceError, match="goes on") as caught:
        client.job("a").wait(timeout_s=0)
    assert caught.value.code == "timeout"


def test_an_interrupted_wait_cancels_the_work(server, client):
    server.then(202, {**VIEW, "state": "queued"})
    server.then(200, {**VIEW, "state": "running"})
    server.then(200, b"")
    server.then(200, {**VIEW, "state": "canceled"})
    with pytest.raises(ServiceError):
        client.motion("a person walks", timeout_s=0)
    assert server.seen[-1][:2] == ("POST", "/v1/motions/a/cancel")


def test_clips_are_saved_by_suffix(server, client, tmp_path):
    server.then(200, VIEW)
    job = client.job("a")
    for content in (b"four", b"five", b"{}"):
        server.then(200, content)
    paths = job.save(tmp_path / "walk.glb")
    assert [path.name for path in paths] == ["walk_s4.glb", "walk_s5.glb"]
    assert [path.read_bytes() for path in paths] == [b"four", b"five"]
    assert job.save(tmp_path / "walk.json") == [tmp_path / "walk.json"]
    queries = [one[1].partition("?")[2] for one in server.seen[1:]]
    assert queries == ["format=glb&seed=4", "format=glb&seed=5", "format=json"]
    with pytest.raises(OutputError, match=r"\.glb"):
        job.save(tmp_path / "walk.exe")
