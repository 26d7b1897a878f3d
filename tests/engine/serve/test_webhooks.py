"""Webhooks: signed, kept until taken, and no way into the server's own network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hymotion_ray.engine.serve.metrics import Metrics
from hymotion_ray.engine.serve.outbox import FOLDER, Outbox
from hymotion_ray.engine.serve.webhook_guard import ForbiddenTargetError, Guard
from hymotion_ray.engine.serve.webhooks import Sender, read_secret
from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.atomic import open_store

REPO = Path(__file__).resolve().parents[3]
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
EVENT = {"type": "motion.succeeded", "data": {"id": "m1"}}


class Receiver(http.server.ThreadingHTTPServer):
    """A client's server: answers as told, keeps what came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.drip = False


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), body))
        if self.server.drip:
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"H")
                    time.sleep(0.05)
            return
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def url_of(receiver: Receiver, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{receiver.server_port}/hook?a=1"


def sender(*hosts: str, **options) -> Sender:
    resolver = options.pop("resolver", None)
    guard = Guard(allowed_hosts=hosts, **({"resolver": resolver} if resolver else {}))
    return Sender(read_secret(SECRET), guard, **options)


def send(one: Sender, url: str):
    return asyncio.run(one.send(url, "msg_1", b'{"a":1}', caller="studio"))


def test_a_receiver_can_check_a_message_as_the_documentation_says(receiver):
    assert send(sender("127.0.0.1"), url_of(receiver)).state == "delivered"
    path, headers, body = receiver.seen[0]
    assert path == "/hook?a=1"
    page = (REPO / "docs" / "serving-client.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.S) if "is_genuine" in c)
    told: dict[str, Any] = {}
    exec(code, told)
    secret = read_secret(SECRET).for_caller("studio").secret
    assert told["is_genuine"](secret, headers, body)
    assert not told["is_genuine"](secret, headers, body + b" ")
    assert not told["is_genuine"](read_secret(SECRET).for_caller("intern").secret, headers, body)


def test_another_body_another_caller_and_an_old_message_do_not_verify():
    signer, now = read_secret(SECRET).for_caller("studio"), 1_800_000_000
    headers = signer.sign("msg_1", now, b"{}")
    assert signer.verify(headers, b"{}", now + 200)
    assert signer.verify({k.title(): v for k, v in headers.items()}, b"{}", now)
    assert not signer.verify(headers, b"{ }", now)
    assert not signer.verify(headers, b"{}", now + 301)
    assert not signer.verify(headers | {"webhook-id": "msg_2"}, b"{}", now)
    assert not signer.verify(headers | {"webhook-timestamp": str(now + 1)}, b"{}", now)
    assert not signer.verify(headers | {"webhook-signature": "v1,é"}, b"{}", now)
    assert not read_secret(SECRET).for_caller("intern").verify(headers, b"{}", now)
    rotated = headers | {"webhook-signature": f"v1,b2xk {headers['webhook-signature']}"}
    assert signer.verify(rotated, b"{}", now)


@pytest.mark.parametrize("bad", ["", "secret", "whsec_", "whsec_!!!!", "whsec_c2hvcnQ="])
def test_a_weak_secret_is_refused_without_being_shown(bad):
    with pytest.raises(ConfigError) as caught:
        read_secret(bad)
    assert "c2hvcnQ" not in str(caught.value)
    assert "AAEC" not in repr(read_secret(SECRET))


HOSTILE = [
    "http://127.0.0.1/", "https://127.0.0.1/", "https://127.1/", "https://2130706433/",
    "https://0x7f000001/", "https://0177.0.0.1/", "https://localhost./", "https://[::1]/",
    "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/", "https://[64:ff9b:1::7f00:1]/", "https://[2002:7f00:1::]/",
    "https://[2001:0:53aa:64c:0:0:80ff:fffe]/", "https://[fe80::1]/", "https://[fe80::1%25eth0]/",
    "https://[fd00:ec2::254]/", "https://[fec0::1]/", "https://[ff02::1]/", "https://[::]/",
    "https://169.254.169.254/latest/meta-data/", "https://100.100.100.200/", "https://10.0.0.1/",
    "https://172.16.0.1/", "https://192.168.1.1/", "https://100.64.0.1/", "https://0.0.0.0/",
    "https://198.18.0.1/", "https://224.0.0.1/", "https://255.255.255.255/",
    "https://168.63.129.16/", "https://192.88.99.1/",
    "http://example.com/", "https://example.com:22/", "https://example.com:0/",
    "https://example.com:99999/", "https://user:pw@example.com/", "https://user@example.com/",
    "https://example.com#@127.0.0.1/", "https://example.com\\@127.0.0.1/",
    "https://exa mple.com/", "https://example.com/\r\nX: 1", "https://ex\u00e4mple.com/",
    "https://\u2460\u2461\u2466.0.0.1/", "ftp://example.com/", "file:///etc/passwd",
    "gopher://127.0.0.1/", "//example.com/", "example.com", "", "https://", "https://[::1/",
    "https://" + "a" * 3000 + ".com/",
]  # fmt: skip


@pytest.mark.parametrize("url", HOSTILE)
def test_no_url_leads_into_the_network_of_the_server(url):
    """`localhost` resolves here as it does on a real machine; nothing else resolves to anything."""
    guard = Guard(resolver=lambda host, port: ["127.0.0.1"])
    with pytest.raises(ForbiddenTargetError):
        guard.resolve(url)


@pytest.mark.parametrize(
    "answers",
    [["10.0.0.7"], ["93.184.216.34", "10.0.0.7"], ["::ffff:10.0.0.7"], ["fe80::1%eth0"], ["junk"]],
)
def test_a_public_name_with_any_private_address_is_refused(answers):
    with pytest.raises(ForbiddenTargetError):
        Guard(resolver=lambda host, port: answers).resolve("https://hooks.example.com/x")


def test_public_targets_are_allowed_and_pinned():
    guard = Guard(resolver=lambda host, port: ["93.184.216.34", "2606:2800:220:1::1"])
    target = guard.resolve("https://Hooks.Example.com:8443/x?y=z")
    assert target.pinned_url == "https://93.184.216.34:8443/x?y=z"
    assert target.host_header == "hooks.example.com:8443"
    assert guard.resolve("https://example.com").pinned_url == "https://93.184.216.34:443/"
    literal = guard.resolve("https://[2606:4700:4700::1111]/")
    assert literal.pinned_url == "https://[2606:4700:4700::1111]:443/"
    assert literal.host_header == "[2606:4700:4700::1111]"


def test_a_listed_host_may_be_private_on_its_port_alone():
    guard = Guard(allowed_hosts=("hooks.cluster.local:9000", "[fd00::7]:9000"), resolver=_private)
    assert guard.resolve("http://hooks.cluster.local:9000/").pinned_url == "http://10.0.0.7:9000/"
    assert guard.resolve("http://[fd00::7]:9000/").pinned_url == "http://[fd00::7]:9000/"
    for url in ("http://hooks.cluster.local:9001/", "https://hooks.cluster.local/"):
        with pytest.raises(ForbiddenTargetError):
            guard.resolve(url)


def _private(host: str, port: int) -> list[str]:
    return ["10.0.0.7"]


def test_a_name_that_answers_otherwise_the_second_time_reaches_nothing(receiver):
    """DNS rebinding: the check sees a public address, a second look-up would see this machine."""
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["203.0.113.9" if len(asked) > 1 else "8.8.8.8"]

    guard = Guard(resolver=rebinding)
    target = guard.resolve("https://rebind.example.com/")
    assert str(target.address) == "8.8.8.8"
    assert "8.8.8.8" in target.pinned_url
    assert asked == ["rebind.example.com"]

    # And over a real connection: the name goes in the Host header, the address is the resolver's.
    listed = f"rebind.example.com:{receiver.server_port}"
    looked_up = []

    def once(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else ["192.0.2.1"]

    outcome = send(sender(listed, resolver=once), url_of(receiver, "rebind.example.com"))
    assert outcome.state == "delivered"
    assert looked_up == ["rebind.example.com"]
    assert receiver.seen[0][1]["Host"] == listed


def test_redirects_are_not_followed_and_410_ends_it(receiver):
    receiver.answers = [(302, {"Location": url_of(receiver) + "&again"}), (410, {})]
    assert send(sender("127.0.0.1"), url_of(receiver)).state == "refused"
    assert len(receiver.seen) == 1
    assert send(sender("127.0.0.1"), url_of(receiver)).state == "refused"


def test_busy_and_broken_receivers_are_tried_again(receiver):
    receiver.answers = [(503, {"Retry-After": "7"}), (500, {}), (400, {})]
    one = sender("127.0.0.1")
    first = send(one, url_of(receiver))
    assert (first.state, first.retry_after_s) == ("retry", 7.0)
    assert [send(one, url_of(receiver)).state for _ in range(2)] == ["retry", "retry"]
    assert send(sender("127.0.0.1:9"), "http://127.0.0.1:9/").state == "retry"


def test_a_receiver_that_answers_a_byte_at_a_time_is_left(receiver):
    receiver.drip = True
    start = time.monotonic()
    assert send(sender("127.0.0.1", timeout_s=0.3), url_of(receiver)).state == "retry"
    assert time.monotonic() - start < 3


def test_messages_are_tried_again_and_survive_a_restart(receiver, tmp_path):
    receiver.answers = [(500, {}), (500, {})]
    store = open_store(tmp_path)

    def box(pauses):
        return Outbox(store, sender("127.0.0.1"), Metrics(to_ray=False), pauses_s=pauses)

    async def first_life() -> None:
        outbox = box((3600.0,))
        running = asyncio.create_task(outbox.run())
        await outbox.post("job-1", url_of(receiver), "studio", EVENT)
        await outbox.post("job-1", url_of(receiver), "studio", EVENT)
        await until(lambda: len(receiver.seen) == 1)
        await stop(running)
        assert outbox.num_waiting == 1

    async def second_life() -> None:
        outbox = box((0.02, 0.02, 0.02))
        outbox._clock = lambda: time.time() + 7200
        assert await outbox.load() == 1
        running = asyncio.create_task(outbox.run())
        await until(lambda: outbox.num_waiting == 0)
        await stop(running)

    asyncio.run(first_life())
    asyncio.run(second_life())
    assert len(receiver.seen) == 3
    assert {headers["webhook-id"] for _, headers, _ in receiver.seen} == {"job-1"}
    assert json.loads(receiver.seen[-1][2]) == EVENT
    assert store.list_files(FOLDER) == []


def test_a_dead_receiver_is_given_up_in_the_end(tmp_path):
    metrics = Metrics(to_ray=False)

    async def life() -> None:
        outbox = Outbox(
            open_store(tmp_path), sender("127.0.0.1"), metrics, pauses_s=(0.01, 0.01)
        )  # fmt: skip
        running = asyncio.create_task(outbox.run())
        await outbox.post("job-1", "http://127.0.0.1:9/", "studio", EVENT)
        await until(lambda: outbox.num_waiting == 0)
        await stop(running)

    asyncio.run(life())
    assert metrics.value("webhooks", {"outcome": "retry"}) == 2
    assert metrics.value("webhooks", {"outcome": "given_up"}) == 1


async def until(holds, limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.01)


async def stop(task: asyncio.Task) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
