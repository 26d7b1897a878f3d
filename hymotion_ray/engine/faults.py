"""Faults on purpose, for tests and campaigns: a process dies, hangs or raises at a named point.

Inert unless the environment variable HYMOTION_FAULTS names a folder when the process starts (or
`use` was called with one). The folder holds `plan`, a line a fault:

    point:count:action[:text]

`count` is the how-manyeth arrival at the point, counted over all processes and restarts, or `*` for
every one; with `text` only arrivals whose detail holds it count. Actions: kill (SIGKILL to this
process), stop (SIGSTOP), interrupt (SIGINT), exit (`sys.exit`), raise, nospace (ENOSPC), hang.
Every arrival is a line of `log`. Ray-free.
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

VARIABLE = "HYMOTION_FAULTS"
_folder: Path | None = None
_replace = os.replace


def use(folder: str | None) -> None:
    """Arm this process with the plan in `folder`; None disarms it."""
    global _folder
    _folder = Path(folder) if folder else None
    os.replace = _replace if _folder is None else _watched_replace  # type: ignore[assignment]


def folder() -> str | None:
    """The folder in use, for processes that this one starts."""
    return None if _folder is None else str(_folder)


def reach(point: str, detail: str = "") -> None:
    """Say that this process is at a named point; what the plan has for it happens here."""
    if _folder is not None:
        _arrive(_folder, point, detail)


def _watched_replace(source: str, target: str) -> None:
    reach("rename", os.fspath(target))  # the moment between a finished temporary file and its name
    _replace(source, target)


def _arrive(folder: Path, point: str, detail: str) -> None:
    line = f"{point}\t{os.getpid()}\t{time.time():.3f}\t{detail}\n".encode()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(log, line)
    os.close(log)
    try:
        plan = (folder / "plan").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for entry in plan:
        name, count, action, *text = entry.split(":", 3)
        if name != point or (text and text[0] not in detail):
            continue
        if count == "*" or _number(folder, entry) == int(count):
            _act(action, point)


def _number(folder: Path, entry: str) -> int:
    """How many arrivals this fault has seen, this one included: files made by one process each."""
    key = hashlib.sha256(entry.encode()).hexdigest()[:12]
    number = 1
    while True:
        try:
            os.close(os.open(folder / f"{key}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number


def _act(action: str, point: str) -> None:
    if action == "exit":
        sys.exit(1)
    if action == "raise":
        raise RuntimeError(f"a fault at {point}, made on purpose")
    if action == "nospace":
        raise OSError(errno.ENOSPC, f"a full disk at {point}, made on purpose")
    if action == "hang":
        while True:
            time.sleep(60)
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}
    os.kill(os.getpid(), signals[action])


if os.environ.get(VARIABLE):
    use(os.environ[VARIABLE])
