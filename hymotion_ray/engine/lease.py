"""One driver a folder: a file with a heartbeat says whose it is. Ray-free.

Works on disks and object stores alike, without locks and without comparing clocks: a lease that
does not change while it is watched for some beats is one whose owner is gone. A driver that died on
this machine is known to be dead at once. The file also names the items that were at work, so that
the next driver knows which ones may have brought the last one down.

Writers check the lease before they commit, so that one that outlived its driver writes nothing over
the work of the next. Should two drivers ever slip in at once, they write the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store

WORK_FOLDER = ".work"
_FILE = f"{WORK_FOLDER}/lease.json"
BEAT_S = 5.0
_BEATS_UNTIL_GONE = 4
_LOOKS, _BETWEEN_LOOKS_S = 4, 0.5


@dataclass(frozen=True)
class LeaseCheck:
    """What a writer needs to know whether its driver still owns the folder."""

    store: Store
    token: str

    def require(self) -> None:
        """Raise `OutputError` when the folder is no longer this driver's."""
        held = _read(self.store)
        for _ in range(_LOOKS - 1):
            if held is not None:
                break
            # Not there at one look may be a store that is busy replacing it.
            time.sleep(_BETWEEN_LOOKS_S)
            held = _read(self.store)
        if held is None:
            raise OutputError(
                f"{self.store.url('')} is not what the driver sees under that name (there is no"
                f" {_FILE} in it), or the job has ended; give an --out that every node sees, on a"
                " shared disk or in an object store"
            )
        if held["token"] != self.token:
            raise OutputError(
                f"{self.store.url('')} is no longer this job's: another driver has taken it over"
            )


class Lease:
    """The hold of one driver on a folder. Use as a context manager."""

    def __init__(
        self,
        store: Store,
        say: Callable[[str], None],
        beat_s: float = BEAT_S,
        *,
        keeps_scratch: bool = False,
    ) -> None:
        """Nothing is touched before the `with`, which raises `OutputError` for a folder in use.

        keeps_scratch: leave what else lies in `.work` to the job, which goes on from it.
        """
        self._store, self._say, self._beat_s = store, say, beat_s
        self._keeps_scratch = keeps_scratch
        self._mine: dict[str, Any] = {
            "token": secrets.token_hex(16),
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "process": _process(os.getpid()),
            "beat": 0,
            "running": [],
        }
        self._running: Callable[[], list[str]] = list
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self.left_running: list[str] = []
        """What the last driver was working on when it died; empty after a clean end."""
        self.is_takeover = False
        """Whether the last driver left without an end."""
        self.lost = False
        """Whether another driver has taken the folder."""

    @property
    def check(self) -> LeaseCheck:
        """For the writers."""
        return LeaseCheck(self._store, self._mine["token"])

    def tell(self, running: Callable[[], list[str]]) -> None:
        """Have the file name the items that `running` says are at work; asked every second."""
        self._running = running

    def __enter__(self) -> Lease:
        held = _read(self._store)
        if held is not None:
            self._wait_for(held)
            self.is_takeover, self.left_running = True, list(held["running"])
        self._write()
        time.sleep(0.02 if self._is_local else 1.0)
        self.check.require()  # of two that came at once, the later one keeps it
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        held = None if self.lost else _read(self._store)
        if self.lost or (held is not None and held["token"] != self._mine["token"]):
            return  # it is another driver's now
        filesystem = self._store.filesystem
        with contextlib.suppress(OSError):
            if self._keeps_scratch:
                filesystem.delete_file(self._store.path(_FILE))
            else:
                filesystem.delete_dir(self._store.path(WORK_FOLDER))
        if self._is_local:  # folders in which nothing was written go too
            for name in (WORK_FOLDER, ""):
                with contextlib.suppress(OSError):
                    os.rmdir(self._store.path(name))

    @property
    def _is_local(self) -> bool:
        return isinstance(self._store.filesystem, fs.LocalFileSystem)

    def _wait_for(self, held: dict[str, Any]) -> None:
        """Return when the owner of `held` is gone."""
        who = f"process {held['pid']} on {held['host']}"
        if held["machine"] == self._mine["machine"]:
            if held["process"] != _process(held["pid"]):
                return
            raise _in_use(self._store, who)
        seconds = _BEATS_UNTIL_GONE * self._beat_s
        self._say(f"waiting {seconds:g} s to see whether {who} still works on this folder")
        for _ in range(2 * _BEATS_UNTIL_GONE):
            time.sleep(self._beat_s / 2)
            now = _read(self._store)
            if now is None:
                return
            if (now["token"], now["beat"]) != (held["token"], held["beat"]):
                raise _in_use(self._store, who)

    def _beat(self) -> None:
        """Write the lease when what is at work has changed, and every beat in any case."""
        written = time.monotonic()
        while not self._stop.wait(min(1.0, self._beat_s)):
            running = self._running()
            if running == self._mine["running"] and time.monotonic() - written < self._beat_s:
                continue
            written = time.monotonic()
            with contextlib.suppress(OutputError):  # the next beat may get through
                held = _read(self._store)
                if held is not None and held["token"] != self._mine["token"]:
                    self.lost = True
                    return
                self._mine["running"] = running
                self._write()

    def _write(self) -> None:
        self._mine["beat"] += 1
        self._store.write_bytes(_FILE, json.dumps(self._mine).encode())


def _read(store: Store) -> dict[str, Any] | None:
    if not store.exists(_FILE):
        return None
    try:
        held: dict[str, Any] = json.loads(store.read_bytes(_FILE))
    except (ValueError, OutputError):
        return None
    return held


def _in_use(store: Store, who: str) -> OutputError:
    return OutputError(
        f"{store.url('')} is in use by {who}; wait for that job or stop it, or pass another --out"
    )


def _machine() -> str:
    """Machine, boot and process namespace: where process numbers mean the same."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _process(pid: int) -> str | None:
    """A process beyond its number, which is used again: when it started; None for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self").exists():
            return None
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return str(pid)
    return None if fields[0] == "Z" else f"{pid}/{fields[19]}"
