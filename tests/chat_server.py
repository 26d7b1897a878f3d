"""A real HTTP server on this machine that plays an OpenAI-compatible chat endpoint."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """What the endpoint does with one request."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drip: bool = False
    """Send a byte now and then, for ever."""


@dataclass
class ChatServer:
    """The endpoint's address and what it was asked."""

    endpoint: str
    requests: list[dict] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0

    def prompts(self) -> list[str]:
        """The prompts of all requests, in order of arrival."""
        return [json.loads(r["messages"][1]["content"])["prompt"] for r in self.requests]


def completion(content: object) -> Answer:
    """An answer that says `content`."""
    return Answer(json.dumps({"choices": [{"message": {"content": content}}]}).encode())


@contextmanager
def serve(answer: Callable[[str, int], Answer]) -> Iterator[ChatServer]:
    """Run an endpoint that answers prompt text and request number with `answer`."""
    lock, now = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(request)
                server.headers.append(dict(self.headers))
                now[0] += 1
                server.most_at_once = max(server.most_at_once, now[0])
            try:
                self._reply(answer(server.prompts()[number], number))
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with lock:
                    now[0] -= 1

        def _reply(self, reply: Answer) -> None:
            time.sleep(reply.wait_s)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            while reply.drip:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(reply.body)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = ChatServer(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
