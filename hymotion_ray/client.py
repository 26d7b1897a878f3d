"""A client for an endpoint of this project: a sentence goes in, motion files come out.

    from hymotion_ray.client import Client
    Client("http://localhost:8000", key).motion("a person walks", duration=5).save("walk.glb")

Knows the HTTP routes and nothing of models: it loads neither torch nor ray, so that a tool inside
an editor or a game engine can hold it. Every request for motion has an id, so that it can be sent
again without being done twice; a busy server's Retry-After is kept to.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from hymotion_ray.errors import OutputError, ServiceError

FORMATS = ("npz", "glb", "bvh", "json", "html")
ENDED = frozenset(["succeeded", "failed", "canceled", "expired"])
_BUSY = frozenset([408, 425, 429, 500, 502, 503, 504])
_LONGEST_PAUSE_S = 60.0


class Client:
    """One endpoint. Safe from several threads; close it, or use it in a `with` block."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_s: float = 60.0,
        patience_s: float = 600.0,
        verify: bool | str = True,
    ) -> None:
        """Connect on first use. url: without `/v1`; key: sent as `Authorization: Bearer`.

        timeout_s: for one answer; patience_s: how long busy answers and lost connections are put up
        with, all tries of one call together; verify: as httpx takes it.
        """
        self.patience_s = patience_s
        headers = {"User-Agent": "hymotion-ray-client"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1/", headers=headers, timeout=timeout_s, verify=verify
        )

    def motion(
        self,
        text: str,
        *,
        duration: float | None = None,
        num_frames: int | None = None,
        seeds: Sequence[int] | None = None,
        num_seeds: int | None = None,
        model: str | None = None,
        guidance_scale: float | None = None,
        num_steps: int | None = None,
        id: str | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """Make motion and wait for it; an interrupt or `timeout_s` cancels the work.

        duration: seconds, or num_frames at 30 a second; seeds, or num_seeds for 0, 1, ...; id: an
        idempotency key of your own. `ServiceError` when it cannot be made, and after `timeout_s`.
        """
        job = self.submit(
            text,
            duration=duration,
            num_frames=num_frames,
            seeds=seeds,
            num_seeds=num_seeds,
            model=model,
            guidance_scale=guidance_scale,
            num_steps=num_steps,
            id=id,
        )
        try:
            return job.wait(timeout_s)
        except BaseException:
            if not job.is_ended:
                job.cancel()
            raise

    def submit(
        self,
        text: str,
        *,
        duration: float | None = None,
        num_frames: int | None = None,
        seeds: Sequence[int] | None = None,
        num_seeds: int | None = None,
        model: str | None = None,
        guidance_scale: float | None = None,
        num_steps: int | None = None,
        webhook: str | None = None,
        id: str | None = None,
    ) -> Job:
        """Hand in a request and return at once; the job outlives this process and the server's."""
        asked = {
            "text": text,
            "duration": duration,
            "num_frames": num_frames,
            "seeds": None if seeds is None else [int(seed) for seed in seeds],
            "num_seeds": num_seeds,
            "model": model,
            "guidance_scale": guidance_scale,
            "num_steps": num_steps,
            "webhook": webhook,
        }
        body = {name: value for name, value in asked.items() if value is not None}
        job_id = id or f"py-{uuid.uuid4().hex}"
        answer = self._call(
            "PUT", f"motions/{job_id}", json=body, headers={"Prefer": "respond-async"}
        )
        return Job(self, answer.json())

    def job(self, id: str) -> Job:
        """A job that was handed in before."""
        return Job(self, self._call("GET", f"motions/{id}").json())

    def jobs(self) -> Iterator[Job]:
        """All jobs of this key that are kept, the newest first."""
        after: str | None = None
        while True:
            query = {"limit": "100"} | ({"after": after} if after else {})
            page = self._call("GET", "motions", params=query).json()
            yield from (Job(self, view) for view in page["data"])
            after = page["next"]
            if after is None:
                return

    def models(self) -> list[dict[str, Any]]:
        """What `model` may name."""
        found: list[dict[str, Any]] = self._call("GET", "models").json()["data"]
        return found

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer of a call that may be sent again; `ServiceError` when there is no good one."""
        until = time.monotonic() + self.patience_s
        for attempt in range(1_000_000):
            try:
                answer = self._http.request(
                    method, path, json=json, params=params, headers=headers
                )  # fmt: skip
                if answer.is_success:
                    return answer
                error = _error(answer)
                if answer.status_code not in _BUSY:
                    raise error
                pause = _retry_after(answer) or _pause(attempt)
            except httpx.TransportError as lost:
                error = ServiceError(
                    f"{self._http.base_url}: {lost or type(lost).__name__}", "lost"
                )
                pause = _pause(attempt)
            if time.monotonic() + pause > until:
                raise error
            time.sleep(pause)
        raise AssertionError("the loop ends by time")


@dataclass
class Job:
    """One request for motion, as the server last told of it."""

    client: Client = field(repr=False)
    view: dict[str, Any]
    """The server's own document: state, progress, clips, warnings, ..."""

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.view["id"])

    @property
    def state(self) -> str:
        """queued, running, succeeded, failed, canceled or expired."""
        return str(self.view["state"])

    @property
    def progress(self) -> float:
        """Share of its steps that are done."""
        return float(self.view.get("progress", 0.0))

    @property
    def seeds(self) -> list[int]:
        """Seeds of its clips."""
        return list(self.view["seeds"])

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    def refresh(self) -> Job:
        """Ask how it stands."""
        self.view = self.client._call("GET", f"motions/{self.id}").json()
        return self

    def updates(self, timeout_s: float | None = None) -> Iterator[Job]:
        """The job, again whenever it changes, until it has ended; for progress bars.

        A lost connection is taken up again. `ServiceError` after `timeout_s` seconds.
        """
        until = time.monotonic() + (timeout_s if timeout_s is not None else 1e9)
        attempt = 0
        while True:
            self.refresh()
            yield self
            if self.is_ended:
                return
            try:
                for view in self._events(until):
                    attempt = 0
                    self.view = view
                    yield self
                    if self.is_ended:
                        return
            except httpx.TransportError:
                attempt += 1
            if time.monotonic() > until:
                raise ServiceError(
                    f"the job {self.id} is {self.state} after {timeout_s:g} s; it goes on, and"
                    " wait() may be called again",
                    "timeout",
                )
            time.sleep(min(_pause(attempt), max(0.0, until - time.monotonic()) + 0.01))

    def wait(self, timeout_s: float | None = None) -> Job:
        """The job when it has succeeded; `ServiceError` with the reason when it has not."""
        for _ in self.updates(timeout_s):
            pass
        if self.state != "succeeded":
            reason = (self.view.get("error") or {}).get("message", "no reason was given")
            raise ServiceError(f"the job {self.id} has {self.state}: {reason}", self.state)
        return self

    def cancel(self) -> Job:
        """End it now; nothing for one that has ended."""
        self.view = self.client._call("POST", f"motions/{self.id}/cancel").json()
        return self

    def result(self, format: str = "npz", *, seed: int | None = None) -> bytes:
        """A clip's file, or of all of them together: a ZIP archive, a JSON document, a page."""
        query = {"format": format} | ({} if seed is None else {"seed": str(seed)})
        return self.client._call("GET", f"motions/{self.id}/result", params=query).content

    def save(self, path: str | Path) -> list[Path]:
        """Write the clips in the format of the suffix; returns the files.

        json and html are one file. Several clips in another format are one file each, with `_sSEED`
        before the suffix.
        """
        path = Path(path)
        name = path.suffix.lower().removeprefix(".")
        if name not in FORMATS:
            raise OutputError(
                f"{path}: unknown suffix; allowed: {', '.join('.' + known for known in FORMATS)}"
            )
        good = [clip["seed"] for clip in self.view["clips"] if clip["state"] == "succeeded"]
        if name in ("json", "html") or len(good) <= 1:
            path.write_bytes(self.result(name))
            return [path]
        files = []
        for seed in good:
            one = path.with_name(f"{path.stem}_s{seed}{path.suffix}")
            one.write_bytes(self.result(name, seed=seed))
            files.append(one)
        return files

    def _events(self, until: float) -> Iterator[dict[str, Any]]:
        """The job's documents as the server sends them."""
        with self.client._http.stream(
            "GET", f"motions/{self.id}/events", headers={"Accept": "text/event-stream"}
        ) as answer:
            if not answer.is_success:
                return
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])
                if time.monotonic() > until:
                    return


def _error(answer: httpx.Response) -> ServiceError:
    """What the server said was wrong."""
    try:
        body = answer.json()["error"]
        code, message = str(body["code"]), str(body["message"])
        faults = [f"{fault['field']}: {fault['message']}" for fault in body.get("fields") or []]
    except (ValueError, KeyError, TypeError):
        code, message, faults = "http", answer.reason_phrase or "no reason", []
    told = "; ".join([fault for fault in faults if fault not in message])
    text = f"the server answered {answer.status_code}: {message}{told and f' ({told})'}"
    return ServiceError(text, code, answer.status_code)


def _retry_after(answer: httpx.Response) -> float | None:
    try:
        seconds = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        return None
    # a little more, each client its own, so that those who were told the same do not come at once
    return seconds + random.uniform(0.0, 0.25) if 0 <= seconds < 86_400 else None


def _pause(attempt: int) -> float:
    return min(0.25 * 2 ** min(attempt, 10), _LONGEST_PAUSE_S) * random.uniform(0.7, 1.0)
