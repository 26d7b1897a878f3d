"""What an ingest has done so far: files by `JobProgress`, and the clips and shards of them."""

from __future__ import annotations

from hymotion_ray.engine.progress import JobProgress


class IngestProgress:
    """Files read of `total`, clips and shards that came of them. Use as a context manager."""

    def __init__(self, total: int) -> None:
        """total: files to be read."""
        self._files = JobProgress(total=total, title="ingest", unit="files")
        self.accepted = self.rejected = 0
        self._shards, self._bytes = 0, 0

    def __enter__(self) -> IngestProgress:
        self._files.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.__exit__()

    def passed_by(self, num_files: int) -> None:
        """Count files that a stopped run had read into the scratch folder."""
        self._files.done += num_files

    def update(self, num_files: int, num_accepted: int, num_rejected: int) -> None:
        """Count a finished chunk."""
        self.accepted += num_accepted
        self.rejected += num_rejected
        self._tell(num_files)

    def shard(self, num_bytes: int) -> None:
        """Count a written shard."""
        self._shards += 1
        self._bytes += num_bytes
        self._tell(0)

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return self._files.seconds

    @property
    def clips_per_s(self) -> float:
        """Accepted clips a second since the job began."""
        return self.accepted / self.seconds if self.seconds else 0.0

    def _tell(self, num_files: int) -> None:
        parts = [f"{self.accepted} clips ({self.clips_per_s:.1f}/s)"]
        if self.rejected:
            parts.append(f"{self.rejected} rejected")
        if self._shards:
            parts.append(f"{self._shards} shards ({self._bytes / 1e6:.0f} MB)")
        self._files.note = ", ".join(parts)
        self._files.update(num_files, 0, "")
