"""Listing and downloading files of a Hugging Face hub over HTTP: resumed, retried, checked.

Knows the hub's two calls (`/api/models/REPO/revision/REV?blobs=true` and
`/REPO/resolve/COMMIT/FILE`) and no cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hymotion_ray.errors import CheckpointError

_log = logging.getLogger(__name__)

_TRIES = 5
_PAUSE_S = 0.5
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_BLOCK = 1 << 20
COMMIT = re.compile(r"[0-9a-f]{40}")
"""What a commit looks like on a hub."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file of a repository, as the hub describes it."""

    name: str
    """Path inside the repository."""
    size: int
    """Bytes."""
    sha256: str | None
    """Hash of the content, for files in large-file storage."""
    git_sha1: str | None
    """Git's blob hash, for the others."""

    def hasher(self) -> hashlib._Hash:
        """A hash object that, fed with the content, gives `expected`."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)

    @property
    def expected(self) -> str | None:
        """The hex digest that the content must have."""
        return self.sha256 or self.git_sha1


class Hub:
    """A hub at an address, with the right to read given by a token or none."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        """Sends nothing; `CheckpointError` for an endpoint that is no URL."""
        try:
            url = httpx.URL(endpoint)
        except httpx.InvalidURL as error:
            raise CheckpointError(f"HF_ENDPOINT is {endpoint!r} and no URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise CheckpointError(
                f"HF_ENDPOINT is {endpoint!r}; allowed: a URL as in https://huggingface.co"
            )
        self.endpoint = endpoint.rstrip("/")
        self._headers = {"user-agent": "hymotion-ray"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def list_files(self, repo: str, revision: str) -> tuple[str, list[HubFile]]:
        """The commit a revision stands for, and its files. `CheckpointError` when there is none."""
        quoted = urllib.parse.quote(revision, safe="")
        url = f"{self.endpoint}/api/models/{repo}/revision/{quoted}?blobs=true"
        with self._client() as client:
            for left in reversed(range(_TRIES)):
                try:
                    response = client.get(url)
                    _raise_for(response, f"{repo}@{revision}")
                    return _parse_listing(response.content, url)
                except httpx.RequestError as error:
                    self._pause_or_give_up(left, url, error)
        raise AssertionError("the last try returns or raises")

    def download(self, repo: str, commit: str, file: HubFile, path: Path) -> None:
        """Fetch a file to `path`, which appears when it is whole and its hash is right.

        What an earlier try left beside it is gone on with; only tries that bring nothing count as
        failed. Raises `CheckpointError` for a wrong hash, after removing what came, and when the
        transfer fails for good.
        """
        part = path.with_name(path.name + ".part")
        url = f"{self.endpoint}/{repo}/resolve/{commit}/{urllib.parse.quote(file.name)}"
        _log.info("fetching %s (%.1f MB)", url, file.size / 1e6)
        left = _TRIES
        with self._client() as client:
            while (before := _size(part)) < file.size or not part.exists():
                try:
                    self._append(client, url, before, part)
                    if _size(part) < file.size:
                        raise httpx.RemoteProtocolError("the server closed before the end")
                except httpx.RequestError as error:
                    left = _TRIES - 1 if _size(part) > before else left - 1
                    self._pause_or_give_up(left, url, error)
        _check(part, file, url)
        os.replace(part, path)

    def _append(self, client: httpx.Client, url: str, start: int, part: Path) -> None:
        """Fetch what comes after the `start` bytes of `part`; all of it if the server cannot."""
        # The size counts stored bytes, so no compression on the way.
        headers = {"accept-encoding": "identity"}
        if start:
            headers["range"] = f"bytes={start}-"
        with client.stream("GET", url, headers=headers) as response:
            _raise_for(response, part.name.removesuffix(".part"))
            appends = response.status_code == httpx.codes.PARTIAL_CONTENT
            with part.open("ab" if appends else "wb") as out:
                for block in response.iter_bytes():  # as they come: a cut loses none
                    out.write(block)

    def _client(self) -> httpx.Client:
        return httpx.Client(headers=self._headers, timeout=_TIMEOUT, follow_redirects=True)

    @staticmethod
    def _pause_or_give_up(tries_left: int, url: str, error: Exception) -> None:
        if tries_left == 0:
            raise CheckpointError(
                f"{url} cannot be fetched after {_TRIES} tries: {type(error).__name__}: {error}. "
                "Check the network and HF_ENDPOINT and run the same command again; what came so "
                "far is kept"
            ) from error
        time.sleep(_PAUSE_S * (_TRIES - tries_left))


def _raise_for(response: httpx.Response, what: str) -> None:
    code = response.status_code
    if response.is_success:
        return
    if code in _PASSING:
        raise httpx.TransportError(f"the server answered {code}")
    advice = {
        401: "no right to read it; set HF_TOKEN to a token that has it",
        403: "no right to read it; accept the model's terms on its page, and set HF_TOKEN",
        404: "there is no such repository, revision or file; check the spelling",
    }.get(code, "the hub refused it")
    raise CheckpointError(f"{what} at {response.url}: HTTP {code}, {advice}")


def _parse_listing(content: bytes, url: str) -> tuple[str, list[HubFile]]:
    try:
        listing: Any = json.loads(content)
        files = [
            HubFile(
                name=entry["rfilename"],
                size=int(entry["size"]),
                sha256=(entry.get("lfs") or {}).get("sha256"),
                git_sha1=entry.get("blobId"),
            )
            for entry in listing["siblings"]
        ]
        commit = str(listing["sha"])
        if not COMMIT.fullmatch(commit):  # it becomes the name of a folder
            raise ValueError(f"its commit is {commit[:80]!r}")
        return commit, files
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{url} did not answer like a Hugging Face hub ({error!r}); check HF_ENDPOINT"
        ) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check(part: Path, file: HubFile, url: str) -> None:
    """Remove `part` and raise unless its size and hash are the hub's."""
    size, digest = _size(part), file.hasher()
    with part.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    if size != file.size or digest.hexdigest() != file.expected:
        part.unlink()
        raise CheckpointError(
            f"{url} came with {size} bytes and the hash {digest.hexdigest()}; the hub says "
            f"{file.size} bytes and {file.expected}. The download was removed; try again, and if "
            "it stays so, do not use this source"
        )
