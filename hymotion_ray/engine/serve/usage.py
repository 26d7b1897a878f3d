"""What each key has used and may still use: requests a minute, clip-seconds, GPU-seconds a day.

GPU-seconds are kept in a folder or object store, one small file a UTC day and writer, so that no
two processes write one file and a restart forgets nothing. Ray-free; knows no HTTP and no queue:
the caller says what waits.
"""

from __future__ import annotations

import datetime
import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hymotion_ray.engine.serve.keys import Caller, Refusal
from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import Store

_DAY_S = 86_400
FOLDER = "usage"


@dataclass
class Pace:
    """Requests a minute of each key, as a bucket that fills at an even pace. One process's view."""

    share: float = 1.0
    """This process's part of the limit, where several answer requests."""
    _full_at: dict[str, float] = field(default_factory=dict)

    def admit(self, caller: Caller, now: float) -> None:
        """Take one request out of the bucket; `Refusal` 429 with the exact wait when it is empty.

        now: monotonic seconds. (Generic cell rate algorithm: one number a key.)
        """
        limit = caller.limits.requests_per_minute
        if limit is None:
            return
        rate = limit * self.share
        gap, burst = 60.0 / rate, max(rate, 1.0)
        full_at = max(self._full_at.get(caller.name, now), now)
        wait = full_at + gap - (now + burst * gap)
        if wait > 1e-9:
            raise Refusal(
                429, "too_many_requests", f"this key may send {limit:g} requests a minute", wait
            )
        self._full_at[caller.name] = full_at + gap


class Ledger:
    """GPU-seconds by key and UTC day. Safe from several threads; durable when `flush` returns."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        """Read what earlier writers left for today. `clock` gives Unix seconds."""
        self._store, self._clock = store, clock
        self._writer = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._own: dict[str, dict[str, float]] = {}
        self._others: dict[str, dict[str, float]] = {}
        self._dirty: set[str] = set()
        self.refresh()

    def add(self, key: str, gpu_seconds: float) -> None:
        """Charge a key; `flush` makes it durable."""
        if not gpu_seconds > 0 or not math.isfinite(gpu_seconds):
            return
        day = self._day()
        with self._lock:
            spent = self._own.setdefault(day, {})
            spent[key] = spent.get(key, 0.0) + gpu_seconds
            self._dirty.add(day)

    def spent(self, key: str, day: str | None = None) -> float:
        """GPU-seconds of a key on a UTC day (`2027-01-31`; None: today), all writers together."""
        day = day or self._day()
        with self._lock:
            own = self._own.get(day, {}).get(key, 0.0)
            return own + self._others.get(day, {}).get(key, 0.0)

    def flush(self) -> None:
        """Write what changed; `OutputError` when the store refuses, with nothing forgotten."""
        with self._flushing:
            with self._lock:
                pages = {day: dict(self._own[day]) for day in self._dirty}
                self._dirty.clear()
            for day, page in pages.items():
                try:
                    text = json.dumps({"schema": 1, "gpu_seconds": page}, sort_keys=True)
                    self._store.write_bytes(f"{FOLDER}/{day}/{self._writer}.json", text.encode())
                except OutputError:
                    with self._lock:
                        self._dirty |= set(pages)
                    raise

    def refresh(self) -> None:
        """Read today's pages of other writers; `InputError` for a damaged one."""
        day = self._day()
        total: dict[str, float] = {}
        for name in self._store.list_files(f"{FOLDER}/{day}", ".json"):
            if name.endswith(f"/{self._writer}.json"):
                continue
            for key, value in _page(self._store, name).items():
                total[key] = total.get(key, 0.0) + value
        with self._lock:
            self._others = {day: total}
            for old in [kept for kept in self._own if kept != day and kept not in self._dirty]:
                del self._own[old]

    def admit(self, caller: Caller) -> None:
        """`Refusal` 429 for a key whose GPU-seconds of the day are spent, until midnight UTC."""
        limit = caller.limits.gpu_seconds_per_day
        if limit is None or self.spent(caller.name) < limit:
            return
        raise Refusal(
            429,
            "gpu_seconds_spent",
            f"this key has used its {limit:g} GPU-seconds of today (UTC)",
            _DAY_S - self._clock() % _DAY_S,
        )

    def _day(self) -> str:
        return datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).date().isoformat()


def admit_clip_seconds(caller: Caller, asked: float, waiting: float, pace: float | None) -> None:
    """`Refusal` 429 when a request of `asked` seconds of motion would pass the key's limit.

    waiting: the key's seconds that wait or run; pace: seconds of motion made a second, None when
    unknown. A request larger than the whole limit is refused for good, with 422.
    """
    limit = caller.limits.queued_clip_seconds
    if limit is None or waiting + asked <= limit:
        return
    if asked > limit:
        raise Refusal(
            422,
            "over_key_limit",
            f"{asked:g} s of motion in one request; this key may have {limit:g} s waiting at most",
        )
    excess = waiting + asked - limit
    raise Refusal(
        429,
        "too_much_queued",
        f"this key has {waiting:g} s of motion waiting and may have {limit:g} s",
        excess / pace if pace and pace > 0 else 5.0,
    )


def _page(store: Store, name: str) -> dict[str, float]:
    try:
        document = json.loads(store.read_bytes(name))
        page = {str(key): float(value) for key, value in document["gpu_seconds"].items()}
        if document["schema"] != 1 or not all(0 <= v < math.inf for v in page.values()):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{store.url(name)} is no page of GPU-seconds; move it away to start over"
        ) from error
    return page
