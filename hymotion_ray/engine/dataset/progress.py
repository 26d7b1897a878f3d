"""One line every few seconds of a running ingest: counts, rate, time left. Ray-free."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hymotion_ray.engine.progress import duration_words


@dataclass
class IngestProgress:
    """Files read of `total`, clips and shards that came of them. Use as a context manager."""

    total: int
    say: Callable[[str], None]
    every_s: float = 5.0
    """Seconds between lines."""
    files: int = 0
    accepted: int = 0
    rejected: int = 0
    shards: int = 0
    _passed: int = 0
    _bytes: int = 0
    _start: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def __enter__(self) -> IngestProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.say(self.words())

    def passed_by(self, num_files: int) -> None:
        """Count files that a stopped run had read into the scratch folder."""
        self.files += num_files
        self._passed += num_files

    def update(self, num_files: int, num_accepted: int, num_rejected: int) -> None:
        """Count a finished chunk and tell when it is time."""
        self.files += num_files
        self.accepted += num_accepted
        self.rejected += num_rejected
        self._tell()

    def shard(self, num_bytes: int) -> None:
        """Count a written shard."""
        self.shards += 1
        self._bytes += num_bytes
        self._tell()

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self._start

    @property
    def clips_per_s(self) -> float:
        """Accepted clips a second since the job began."""
        return self.accepted / self.seconds if self.seconds else 0.0

    def words(self) -> str:
        """`ingest: 40/120 files, 80 clips, 3 rejected, 2 shards (90 MB), 4.1 clips/s, 9 s left`."""
        parts = [f"{self.files}/{self.total} files", f"{self.accepted} clips"]
        if self.rejected:
            parts.append(f"{self.rejected} rejected")
        if self.shards:
            parts.append(f"{self.shards} shards ({self._bytes / 1e6:.0f} MB)")
        parts.append(f"{self.clips_per_s:.1f} clips/s")
        read = self.files - self._passed
        if read > 0 and self.files < self.total:
            left = (self.total - self.files) * self.seconds / read
            parts.append(f"{duration_words(left)} left")
        return f"ingest: {', '.join(parts)}, {duration_words(self.seconds)} so far"

    def _tell(self) -> None:
        if time.monotonic() - self._last >= self.every_s:
            self._last = time.monotonic()
            self.say(self.words())
