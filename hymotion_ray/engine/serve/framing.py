"""Around every request: its id, its size limit, its line in the log, its count. Plain ASGI.

Plain ASGI rather than a middleware class of the framework's, which would put a second task between
the client and the route, and so hide that a client has gone away.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hymotion_ray.engine.serve.log import HEADER, request_id, span, take_request_id
from hymotion_ray.engine.serve.metrics import ANONYMOUS, Metrics

logger = logging.getLogger("hymotion_ray.serve")
_BATCHES = ("/v1/batches", "/v1/files")
_FORM_BYTES = 65_536
"""Room for what a form adds to its file."""
_QUIET = frozenset(["/livez", "/readyz", "/metrics"])


class _TooLargeError(Exception):
    """The body has more bytes than allowed."""


class Framing:
    """The outermost layer of the app."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        max_body_bytes: int,
        max_batch_bytes: int,
        *,
        names_answers: bool,
    ) -> None:
        """names_answers: put the id into the answer; off where Ray Serve does so itself."""
        self._app, self._metrics = app, metrics
        self._max_body_bytes, self._max_batch_bytes = max_body_bytes, max_batch_bytes
        self._names_answers = names_answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        own_id = take_request_id(headers.get(HEADER.lower()))
        token = request_id.set(own_id)
        scope.setdefault("state", {})["request_id"] = own_id
        began, status, started = time.monotonic(), 500, False
        is_batch = scope["path"].startswith(_BATCHES)
        limit = self._max_batch_bytes + _FORM_BYTES if is_batch else self._max_body_bytes
        body = _Body(receive, limit)

        async def answer(message: Message) -> None:
            nonlocal status, started
            if body.is_over and not started:
                raise _TooLargeError  # the framework made a 400 of it
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                if self._names_answers:
                    pairs = message.get("headers", [])
                    message["headers"] = [*pairs, (HEADER.lower().encode(), own_id.encode())]
            await send(message)

        try:
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length) > limit:
                raise _TooLargeError
            with span(f"{scope['method']} {scope['path']}", {}, headers):
                await self._app(scope, body.receive, answer)
        except _TooLargeError:
            body.is_over = False
            if not started:
                await _send(answer, 413, "body_too_large", f"allowed: {limit} bytes", own_id)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            await _send(answer, 500, "internal", "a fault of this server's; see its log", own_id)
        finally:
            self._note(scope, status, time.monotonic() - began)
            request_id.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        key = scope["state"].get("key", ANONYMOUS)
        self._metrics.count("requests", {"route": route, "status": str(status), "key": key})
        self._metrics.observe("request_seconds", seconds, {"route": route})
        if scope["path"] in _QUIET:
            return
        logger.info(
            "%s %s %d",
            scope["method"],
            scope["path"],
            status,
            extra={"status": status, "took_s": round(seconds, 4)},
        )


class _Body:
    """The request's body, up to a limit."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._size = receive, limit, 0
        self.is_over = False

    async def receive(self) -> Message:
        """The next message; `_TooLargeError` once there is too much."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._limit:
                self.is_over = True
                raise _TooLargeError
        return message


async def _send(send: Any, status: int, code: str, message: str, own_id: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message}, "request_id": own_id}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
