"""Stage: source files -> clips. Wraps `hymotion_ray.formats.sources`. Ray-free.

Whatever a reader does costs its own file only: an exception is tried once more and becomes a
reject; a reader that gives no clip in time is stopped with its process (a thread of the C library
does it, so that a reader that never lets go of Python is stopped too), and so is one that crashes;
the task then starts again and passes by what stopped it (`attempts.py`).
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hymotion_ray.engine.dataset.items import ReadClip, Rejected, printable
from hymotion_ray.engine.dataset.listing import WorkFile
from hymotion_ray.engine.dataset.reader import Reader
from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources import SourceReject

_WIND_S = 1.0
"""Seconds between two windings of the clock, each of which starts a thread."""


@dataclass(frozen=True)
class ReadStage:
    """Reads the files of one chunk."""

    reader: Reader
    clip_timeout_s: float

    def __call__(
        self,
        files: Sequence[WorkFile],
        given_up: Sequence[int] = (),
        announce: Callable[[int | None], None] = lambda _: None,
    ) -> Iterator[ReadClip | Rejected]:
        """Clips and rejects of `files`, one at a time.

        given_up: indices of files that stopped their process too often. announce: told the index of
        the file that is read next.
        """
        for index, file in enumerate(files):
            if index in given_up:
                yield _died(
                    file,
                    "its reader stopped the process, or gave no clip for"
                    f" {self.clip_timeout_s:g} s, at each try",
                )
                continue
            announce(index)
            yield from self._guarded(file)
        announce(None)

    def _guarded(self, file: WorkFile) -> Iterator[ReadClip | Rejected]:
        """The file's clips; an exception before the first clip is tried once more."""
        num_given = 0
        for last_try in (False, True):
            try:
                for item in self._timed(file):
                    num_given += 1
                    yield item
            except SourceError as error:
                yield Rejected(file=file.key, name=file.key, code=error.code, message=str(error))
            # SystemExit too: a library that gives up must not end the worker.
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the file's failure, whatever it is
                if num_given == 0 and not last_try:
                    continue
                yield _died(file, f"its reader raised {type(error).__name__}: {error}")
            else:
                if num_given == 0:
                    yield Rejected(
                        file=file.key, name=file.key, code="empty", message="holds no clip"
                    )
            return

    def _timed(self, file: WorkFile) -> Iterator[ReadClip | Rejected]:
        """What the reader gives; the clock runs while it, or a later stage, has the word."""
        names: dict[str, int] = {}
        clips = self.reader.read(file.source)
        wound = -_WIND_S
        try:
            while True:
                if time.monotonic() - wound >= _WIND_S:
                    wound = time.monotonic()
                    faulthandler.dump_traceback_later(self.clip_timeout_s + _WIND_S, exit=True)
                item = next(clips, None)
                if item is None:
                    return
                if isinstance(item, SourceReject):
                    yield Rejected(
                        file=file.key,
                        name=_name(file, item.name, {}),
                        code=item.code,
                        message=item.message,
                        is_motion=item.is_motion,
                    )
                else:
                    name = _name(file, item.name, names)
                    yield ReadClip(file=file.key, name=name, clip=item)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _name(file: WorkFile, name: str, names: dict[str, int]) -> str:
    """A clip's name in the dataset: the file's key, and what the reader's name adds to its own."""
    tail = name.removeprefix(file.source.name)
    tail = tail if not tail or tail.startswith("#") else f"#{tail}"
    names[tail] = names.get(tail, 0) + 1
    return printable(file.key + tail + (f"~{names[tail]}" if names[tail] > 1 else ""))


def _died(file: WorkFile, why: str) -> Rejected:
    return Rejected(file=file.key, name=file.key, code="reader_died", message=why)
