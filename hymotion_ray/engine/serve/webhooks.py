"""Webhooks: a signed message to the client's URL when a job ends, sent until it is taken.

Form and signature are those of the Standard Webhooks specification (standardwebhooks.com), so that
its libraries check them: headers `webhook-id`, `webhook-timestamp` and `webhook-signature`, the
last `v1,` + base64 of HMAC-SHA256 over `id.timestamp.body`. Knows no job: the outbox
(`outbox.py`) keeps what is still to be sent; where it may be sent is `webhook_guard.py`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from hymotion_ray.engine.serve.webhook_guard import ForbiddenTargetError, Guard, Target
from hymotion_ray.errors import ConfigError

SECRET_PREFIX = "whsec_"
TOLERANCE_S = 300.0
"""Age, in seconds, above which a receiver should take a message for a replay."""
MAX_ANSWER_BYTES = 65_536
TIMEOUT_S = 10.0
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0)
"""Waits between tries; after the last one the message is given up."""


@dataclass(frozen=True)
class Signer:
    """Makes and checks signatures; the secret is in no text of it."""

    key: bytes = field(repr=False)

    def for_caller(self, name: str) -> Signer:
        """A caller's own secret, drawn from the server's: none can forge for another."""
        return Signer(hmac.new(self.key, b"webhook:" + name.encode(), hashlib.sha256).digest())

    @property
    def secret(self) -> str:
        """The secret as a receiver enters it: `whsec_` and base64. Never log it."""
        return SECRET_PREFIX + base64.b64encode(self.key).decode()

    def sign(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers of a message."""
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": f"v1,{self._tag(message_id, str(timestamp), body)}",
        }

    def verify(self, headers: httpx.Headers | dict[str, str], body: bytes, now: float) -> bool:
        """Whether headers and body come from who holds the secret, within `TOLERANCE_S` of now."""
        given = {name.lower(): value for name, value in headers.items()}
        message_id, sent = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
        if not sent.isascii() or not sent.isdigit() or abs(now - int(sent)) > TOLERANCE_S:
            return False
        tag = f"v1,{self._tag(message_id, sent, body)}".encode()
        signatures = given.get("webhook-signature", "").encode("utf-8", "replace").split(b" ")
        return any(hmac.compare_digest(tag, signature) for signature in signatures)

    def _tag(self, message_id: str, timestamp: str, body: bytes) -> str:
        content = message_id.encode() + b"." + timestamp.encode() + b"." + body
        return base64.b64encode(hmac.new(self.key, content, hashlib.sha256).digest()).decode()


def read_secret(secret: str) -> Signer:
    """The signer of a `whsec_` secret; `ConfigError` (without the secret) for anything else."""
    try:
        key = base64.b64decode(secret.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.strip().startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ConfigError(
            f"the webhook secret is not {SECRET_PREFIX} and base64 of 24 to 64 bytes; make one"
            " with: echo whsec_$(openssl rand -base64 32)"
        )
    return Signer(key)


@dataclass(frozen=True)
class Outcome:
    """What came of one try: delivered, retry or refused (no further try), and why."""

    state: str
    reason: str
    retry_after_s: float = 0.0


@dataclass
class Sender:
    """Sends messages, each to a checked address only."""

    signer: Signer
    guard: Guard = field(default_factory=Guard)
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.time
    trust: ssl.SSLContext | None = None
    """Certificates to trust; None: the system's."""

    async def send(self, url: str, message_id: str, body: bytes, *, caller: str) -> Outcome:
        """Resolve, check, connect to the checked address only, post, and read the answer's status.

        Every 2xx is a delivery. 410 ends it; redirects are refused; all else is tried again.
        """
        headers = self.signer.for_caller(caller).sign(message_id, int(self.clock()), body)
        try:
            # Over the whole exchange: a receiver that sends a byte now and then is slow too.
            async with asyncio.timeout(self.timeout_s):
                target = await asyncio.to_thread(self.guard.resolve, url)
                status, retry_after = await self._post(target, headers, body)
        except ForbiddenTargetError as error:
            return Outcome("refused", str(error))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # TimeoutError is an OSError
            return Outcome("retry", f"no answer ({type(error).__name__})")
        if 200 <= status < 300:
            return Outcome("delivered", f"status {status}")
        if 300 <= status < 400:
            return Outcome("refused", f"status {status}: redirects are not followed")
        if status == 410:
            return Outcome("refused", "status 410: the receiver wants no more")
        return Outcome("retry", f"status {status}", retry_after)

    async def _post(
        self, target: Target, headers: dict[str, str], body: bytes
    ) -> tuple[int, float]:
        """Status and Retry-After of the answer, from the address in `target` and no other."""
        own = {
            "Host": target.host_header,
            "Content-Type": "application/json",
            "User-Agent": "hymotion-ray-webhook/1",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        extensions = {"sni_hostname": target.host} if target.scheme == "https" else {}
        async with (
            # trust_env: no proxy of the environment may resolve the name a second time
            httpx.AsyncClient(
                timeout=self.timeout_s,
                follow_redirects=False,
                trust_env=False,
                verify=True if self.trust is None else self.trust,
            ) as client,
            client.stream(
                "POST",
                target.pinned_url,
                content=body,
                headers=own | headers,
                extensions=extensions,
            ) as answer,
        ):
            num_read = 0
            # The answer's text is of no use; a little is read so that honest servers can end it.
            with contextlib.suppress(httpx.HTTPError):
                async for chunk in answer.aiter_raw():
                    num_read += len(chunk)
                    if num_read > MAX_ANSWER_BYTES:
                        break
            return answer.status_code, _seconds(answer.headers.get("retry-after"))


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header in seconds; 0 for none, a date or nonsense."""
    try:
        value = float(retry_after or 0)
    except ValueError:
        return 0.0
    return value if 0 <= value < 86_400 else 0.0
