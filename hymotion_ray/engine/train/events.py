"""The run folder's events: what workers have to say, wherever they run. Ray-free.

A worker's own output stays in its node's log. Lines for the user go into one file that every rank
appends to, and the driver tells them as they come.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS_FILE = "events.jsonl"
_POLL_S = 0.3
_REPORT_S = 5.0


def write_event(out: Path, event: dict[str, object]) -> None:
    """One line of the events file, in one write."""
    line = json.dumps({"time": round(time.time(), 3), **event}, ensure_ascii=False) + "\n"
    file = os.open(out / EVENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read_events(out: Path) -> list[dict[str, Any]]:
    """All whole lines of the events file."""
    path = out / EVENTS_FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class Teller:
    """Tells new events in the driver. Use as a context manager."""

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        """Only what is written from now on is told."""
        self._path, self._say = out / EVENTS_FILE, say
        self._offset = self._path.stat().st_size if self._path.exists() else 0
        self._reported = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._read()

    def _follow(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["kind"] == "report" and not self._is_due(event):
                continue
            words = _words(event)
            if words:
                self._say(words)

    def _is_due(self, event: dict[str, Any]) -> bool:
        """Whether to tell a report: the last one, or one every few seconds."""
        due = event["step"] == event["total"] or event["time"] - self._reported >= _REPORT_S
        if due:
            self._reported = event["time"]
        return due


def _words(event: dict[str, Any]) -> str:
    if event["kind"] == "say":
        return str(event["text"])
    if event["kind"] == "report":
        return (
            f"step {event['step']}/{event['total']}: loss {event['loss']:.4f},"
            f" {event['clips_per_s']:.1f} clips/s"
        )
    if event["kind"] == "start" and event["rank"] == 0:
        return (
            f"training from step {event['step']} with {event['world_size']} workers, rank 0 on"
            f" {event['host']} ({event['device']})"
        )
    return ""
