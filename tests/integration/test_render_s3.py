"""A render job whose output lies in an object store: the same clips, kill, resume and extension."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import moto_app, serving
from render_driver import Command, clips, manifest
from werkzeug.wrappers import Request, Response

from hymotion_ray.formats.atomic import open_store

pytestmark = pytest.mark.ray

WORDS = ("walks", "jumps", "waves", "bows", "runs", "turns", "kneels", "sits")


class Service:
    """moto's S3 that refuses one request in `refuse_every`, busy or broken in turn."""

    def __init__(self) -> None:
        self.refuse_every = 0
        self.num_requests = self.num_refused = 0

    def __call__(self, environ, start_response):
        self.num_requests += 1
        if self.refuse_every and self.num_requests % self.refuse_every == 0:
            self.num_refused += 1
            Request(environ).get_data()
            status = (500, 503)[self.num_refused % 2]
            return Response("not now", status=status)(environ, start_response)
        return moto_app(environ, start_response)


@pytest.fixture(name="service")
def s3_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service()
    with serving(monkeypatch, "bucket", service):
        yield service


@pytest.fixture
def command(service: Service, random_model: Path, tmp_path: Path) -> Command:
    """A command with a Ray of its own, whose processes know the service."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"A person {w}.#24#{w}" for w in WORDS))
    return Command(
        prompts,
        random_model,
        "s3://bucket/runs/a",
        tmp_path / "faults",
        address="local",
        options=["--samplers", "1", "--rows", "4"],
    )


def assert_complete(command: Command) -> dict[str, bytes]:
    store = open_store(command.out)
    found = clips(store.root)
    assert set(found) == {f"motions/{w}_s0.npz" for w in WORDS}
    assert len(manifest(store.root)) == len(WORDS)
    assert command.computed().total() <= len(WORDS) + 4
    assert store.list_files(".work") == []
    assert store.exists("index.html")
    return found


def test_a_job_in_an_object_store_survives_its_errors_and_a_killed_process(
    service: Service, command: Command
) -> None:
    service.refuse_every = 7
    command.plan("files-written:1:kill")
    code, output = command.run()
    assert code == 0, output
    assert service.num_refused > 5
    service.refuse_every = 0  # what the job left is looked at in peace
    assert_complete(command)


@pytest.mark.slow
def test_a_job_in_an_object_store_is_killed_resumed_and_extended(
    service: Service, command: Command
) -> None:
    process = command.start()
    command.wait_for("files-written", 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    code, output = command.run()
    assert code == 0, output
    first = assert_complete(command)
    command.options += ["--format", "npz,bvh", "--seeds", "2"]
    code, output = command.run()
    assert code == 0, output
    after = clips(command.out)
    assert len(after) == len(open_store(command.out).list_files(suffix=".bvh")) == 2 * len(WORDS)
    assert {name: after[name] for name in first} == first
