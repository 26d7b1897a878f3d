"""The webhook messages that are still to be sent, kept where a restart finds them.

One file a message in a folder or object store: written before the job counts as ended, removed when
the message is delivered or given up. A message may arrive twice (a crash between sending and
removing); its `webhook-id` stays the same. Knows no job and no signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from hymotion_ray.engine.serve.log import logger
from hymotion_ray.engine.serve.metrics import Metrics
from hymotion_ray.engine.serve.webhooks import PAUSES_S, Outcome, Sender
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store

FOLDER = "webhooks"
NUM_AT_ONCE = 8
_ID = re.compile(r"[A-Za-z0-9_.-]{1,120}")


@dataclass(frozen=True)
class Message:
    """One message: `body` is the JSON text that is signed; times are Unix seconds."""

    message_id: str
    url: str
    caller: str
    body: str
    attempts: int = 0
    next_at: float = 0.0


class Outbox:
    """Keeps messages in a store and sends them. Its methods belong to one event loop."""

    def __init__(
        self,
        store: Store,
        sender: Sender,
        metrics: Metrics,
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._sender, self._metrics = store, sender, metrics
        self._pauses_s, self._clock = pauses_s, clock
        self._messages: dict[str, Message] = {}
        self._wake = asyncio.Event()
        self._limit = asyncio.Semaphore(NUM_AT_ONCE)

    async def load(self) -> int:
        """Take up what an earlier process left; returns how many messages."""
        names = await asyncio.to_thread(self._store.list_files, FOLDER, ".json")
        for name in names:
            with contextlib.suppress(OutputError, ValueError, TypeError, KeyError):
                row = json.loads(await asyncio.to_thread(self._store.read_bytes, name))
                message = Message(**row)
                self._messages.setdefault(message.message_id, message)
        self._wake.set()
        return len(self._messages)

    async def post(self, message_id: str, url: str, caller: str, event: dict[str, Any]) -> None:
        """Take a message; durable when this returns. One id is sent once, however often posted."""
        assert _ID.fullmatch(message_id), message_id
        if message_id in self._messages:
            return
        body = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        message = Message(message_id, url, caller, body)
        await self._keep(message)
        self._wake.set()

    async def run(self) -> None:
        """Send what is due, for ever; cancel the task to stop."""
        async with asyncio.TaskGroup() as sending:
            under_way: set[str] = set()
            while True:
                self._wake.clear()
                now = self._clock()
                for message in list(self._messages.values()):
                    if message.next_at <= now and message.message_id not in under_way:
                        under_way.add(message.message_id)
                        sending.create_task(self._send(message, under_way))
                later = [m.next_at for m in self._messages.values() if m.next_at > now]
                pause = min(later) - now if later else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    @property
    def num_waiting(self) -> int:
        """Messages that are neither delivered nor given up."""
        return len(self._messages)

    async def _send(self, message: Message, under_way: set[str]) -> None:
        try:
            await self._try(message)
        finally:
            under_way.discard(message.message_id)
            self._wake.set()

    async def _try(self, message: Message) -> None:
        async with self._limit:
            outcome = await self._sender.send(
                message.url, message.message_id, message.body.encode(), caller=message.caller
            )
        attempts = message.attempts + 1
        state = outcome.state
        if state == "retry" and attempts > len(self._pauses_s):
            state = "given_up"
        self._metrics.count("webhooks", {"outcome": state})
        logger.info(
            "webhook %s",
            state,
            extra={"message_id": message.message_id, "attempt": attempts, "why": outcome.reason},
        )
        if state == "retry":
            wait = self._pause(attempts, outcome)
            await self._keep(replace(message, attempts=attempts, next_at=self._clock() + wait))
            return
        with contextlib.suppress(OutputError):
            await asyncio.to_thread(self._store.remove, _name(message.message_id))
        self._messages.pop(message.message_id, None)

    def _pause(self, attempts: int, outcome: Outcome) -> float:
        wait = self._pauses_s[attempts - 1] * random.uniform(0.8, 1.2)
        return max(wait, min(outcome.retry_after_s, max(self._pauses_s)))

    async def _keep(self, message: Message) -> None:
        """Remember a message here and in the store; a store that refuses costs only durability."""
        self._messages[message.message_id] = message
        try:
            data = json.dumps(asdict(message)).encode()
            await asyncio.to_thread(self._store.write_bytes, _name(message.message_id), data)
        except OutputError as error:
            logger.error("webhook not kept", extra={"why": str(error)})


def _name(message_id: str) -> str:
    return f"{FOLDER}/{message_id}.json"
