"""A job, and its record in a folder or object store. Ray-free; knows no HTTP.

    jobs/<key>/<name>.json            what was asked, and how it stands
    results/<key>/<name>/<seed>.npz   clips
    open/<key>/<name>                 there while the job has not ended
    owners/<process>                  signs of life of the processes that run jobs

A record is written by the process that owns the job, and by another only when that one is dead.
Names of files come from ids in a form that every file system takes; a key's jobs are its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import Store

State = Literal["queued", "running", "succeeded", "failed", "canceled", "expired"]
ENDED: frozenset[str] = frozenset(["succeeded", "failed", "canceled", "expired"])
JOB_SCHEMA_VERSION = 1
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def new_id() -> str:
    """A new job id: later ones sort after earlier ones."""
    return f"m{int(time.time() * 1000):012x}{secrets.token_hex(6)}"


def file_name(job_id: str) -> str:
    """A name for the files of a job, whatever its id is made of."""
    if _PLAIN.fullmatch(job_id):
        return job_id
    return "x-" + hashlib.sha256(job_id.encode()).hexdigest()[:40]


@dataclass
class ClipRecord:
    """How one seed of a job stands."""

    seed: int
    state: State = "queued"
    bytes: int = 0
    """Size of its npz file."""
    sha256: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    """device, cell, precision, degradations, seconds, quality."""
    error: dict[str, str] | None = None
    """code and message."""


@dataclass
class Job:
    """One request for motion."""

    id: str
    key: str
    """Name of the API key it came with."""
    model: str
    text: str
    num_frames: int
    num_steps: int
    guidance_scale: float
    seeds: tuple[int, ...]
    created: float
    """Unix seconds, as all times here."""
    deadline: float
    """When it becomes `expired` unless it has ended."""
    format: str = "npz"
    webhook: str | None = None
    fingerprint: str = ""
    """Hash of what was asked, so that a second request with the id can be compared."""
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    clips: list[ClipRecord] = field(default_factory=list)
    error: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    owner: str = ""
    """Process that runs it."""
    attempts: int = 0
    """Times that a process took it up."""
    paused: bool = False
    pool: str = ""
    progress: float = 0.0
    """Share of its steps that are done."""
    truncated: str = ""
    request_id: str = ""
    batch: str | None = None
    """The batch it belongs to."""
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clips:
            self.clips = [ClipRecord(seed) for seed in self.seeds]

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    @property
    def clip_seconds(self) -> float:
        """Seconds of motion asked for."""
        return len(self.seeds) * self.num_frames / 30

    def to_bytes(self) -> bytes:
        """Its record."""
        record = {"schema": JOB_SCHEMA_VERSION} | dataclasses.asdict(self)
        return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")

    @classmethod
    def from_bytes(cls, content: bytes, source: str) -> Job:
        """The job of a record; `InputError` for a damaged one or another schema."""
        try:
            record = json.loads(content)
            if record.pop("schema") != JOB_SCHEMA_VERSION:
                raise InputError(
                    f"{source} was written by another version of hymotion-ray; allowed: schema"
                    f" {JOB_SCHEMA_VERSION}. Move the jobs folder away to start over"
                )
            record["clips"] = [ClipRecord(**clip) for clip in record["clips"]]
            record["seeds"] = tuple(record["seeds"])
            return cls(**record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{source} is no job record ({error})") from error


class JobStore:
    """Records, results and signs of life below a folder or URL. Calls block; any thread."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def save(self, job: Job) -> None:
        """Write the record; an open job's mark comes after it, an ended one's goes after it."""
        name = f"{job.key}/{file_name(job.id)}"
        self.store.write_bytes(f"jobs/{name}.json", job.to_bytes())
        if job.is_ended:
            self.store.remove(f"open/{name}")

    def mark_open(self, job: Job) -> None:
        """Let the job be found by whoever takes over. The record must be there."""
        self.store.write_bytes(f"open/{job.key}/{file_name(job.id)}", job.id.encode())

    def find(self, key: str, job_id: str) -> Job | None:
        """The record of a job of this key; None when there is none."""
        return self._read(f"jobs/{key}/{file_name(job_id)}.json", job_id)

    def _read(self, name: str, job_id: str | None = None) -> Job | None:
        if not self.store.exists(name):
            return None
        try:
            job = Job.from_bytes(self.store.read_bytes(name), self.store.url(name))
        except OutputError:
            return None  # removed in between
        return job if job_id is None or job.id == job_id else None

    def list_jobs(self, key: str, after: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Jobs of a key, the newest made ids first, and where the next page starts."""
        names = sorted(self.store.list_files(f"jobs/{key}", ".json"), reverse=True)
        if after is not None:
            last = f"jobs/{key}/{file_name(after)}.json"
            names = [name for name in names if name < last]
        found: list[Job] = []
        for place, name in enumerate(names):
            job = self._read(name)
            if job is not None:
                found.append(job)
            if len(found) == limit:
                more = place + 1 < len(names)
                return found, found[-1].id if more else None
        return found, None

    def open_jobs(self) -> list[tuple[str, str]]:
        """(key, id) of the jobs that have not ended."""
        found = []
        for name in self.store.list_files("open"):
            key = name.split("/")[1]
            try:
                found.append((key, self.store.read_bytes(name).decode()))
            except OutputError:
                continue  # ended in between
        return found

    def close(self, key: str, job_id: str) -> None:
        """Take away the mark of a job that has no record or has ended."""
        self.store.remove(f"open/{key}/{file_name(job_id)}")

    def write_clip(self, job: Job, seed: int, npz: bytes) -> None:
        """Keep a clip."""
        self.store.write_bytes(self._clip_name(job, seed), npz)

    def read_clip(self, job: Job, seed: int) -> bytes | None:
        """A kept clip; None when there is none."""
        name = self._clip_name(job, seed)
        return self.store.read_bytes(name) if self.store.exists(name) else None

    def _clip_name(self, job: Job, seed: int) -> str:
        return f"results/{job.key}/{file_name(job.id)}/{seed}.npz"

    def beat(self, owner: str) -> None:
        """A sign of life of a process."""
        self.store.write_bytes(f"owners/{owner}", repr(time.time()).encode())

    def leave(self, owner: str) -> None:
        """The process ends: its jobs are anyone's at once."""
        self.store.remove(f"owners/{owner}")

    def living(self, within_s: float) -> set[str]:
        """Processes heard of lately."""
        found = set()
        for name in self.store.list_files("owners"):
            try:
                at = float(self.store.read_bytes(name))
            except (OutputError, ValueError):
                continue
            if time.time() - at <= within_s:
                found.add(name.partition("/")[2])
            elif time.time() - at > 100 * within_s:
                self.store.remove(name)
        return found

    def sweep(self, ttl_s: float, now: float) -> int:
        """Remove what ended more than `ttl_s` ago; returns how many jobs."""
        removed = 0
        for name in self.store.list_files("jobs", ".json"):
            job = self._read(name)
            if job is None or job.ended is None or now - job.ended < ttl_s:
                continue
            for seed in job.seeds:
                self.store.remove(self._clip_name(job, seed))
            self.store.remove(name)
            removed += 1
        return removed
