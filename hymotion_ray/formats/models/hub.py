"""Opt-in download of a model from a Hugging Face hub into a cache of this machine.

`hf:OWNER/NAME[/SUBFOLDER][@REVISION]` -> a local folder, fetched once. One process fetches, the
others wait for it; a broken transfer goes on where it stopped, in a later run too; every file is
checked against the hub's own hash; and the folder appears under its name when all of it is right.
A cached revision is used without contacting the hub.

huggingface_hub (2.4) checks sizes but no hashes, and starts a file anew after its process died, so
the transfer is ours; the two calls of the hub's HTTP interface that it needs are stable and small.
Endpoint: HF_ENDPOINT, token: HF_TOKEN, cache: HYMOTION_CACHE or ~/.cache/hymotion-ray,
HF_HUB_OFFLINE=1: never contact the hub.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.models.hub_transfer import COMMIT, Hub, HubFile
from hymotion_ray.formats.models.new_folder import flush_tree

DEFAULT_ENDPOINT = "https://huggingface.co"
_SPEC = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<subfolder>[\w./-]+?))?/?(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A model on a hub."""

    repo: str
    """Owner and name, with a slash."""
    subfolder: str = ""
    """Folder of the model inside the repository; empty: the whole repository."""
    revision: str = "main"
    """Branch, tag or commit. Only a commit always means the same files."""

    @classmethod
    def parse(cls, text: str) -> HubModel:
        """The model that `hf:OWNER/NAME[/SUBFOLDER][@REVISION]` names, or `CheckpointError`."""
        match = _SPEC.fullmatch(text)
        parts = match.groupdict(default="") if match else {}
        levels = re.split(r"[/@]", text.removeprefix("hf:"))
        if not match or {".", ".."} & set(levels):
            raise CheckpointError(
                f"{text!r} is no model of a hub; allowed: hf:OWNER/NAME, with /SUBFOLDER where the "
                "repository holds several models, and @REVISION (best a commit)"
            )
        return cls(
            repo=parts["repo"],
            subfolder=parts["subfolder"].strip("/"),
            revision=parts["revision"] or "main",
        )


def fetch(
    model: str,
    *,
    cache: str | Path | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    offline: bool | None = None,
) -> Path:
    """The local folder of a hub model, downloaded when the cache lacks it.

    What is None comes from the environment. Raises `CheckpointError` when the model is not on the
    hub, cannot be fetched or kept, does not match the hub's hashes, or is not cached while offline.
    """
    wanted = HubModel.parse(model)
    root = Path(cache) if cache is not None else default_cache()
    home = root.expanduser() / wanted.repo.replace("/", "--")
    found = _cached(home, wanted)
    if found is not None:
        return found
    if _is_offline() if offline is None else offline:
        raise CheckpointError(
            f"{model} is not in the cache {home}, and the hub is not contacted (HF_HUB_OFFLINE); "
            "run once with a network, or give the folder of the model"
        )
    hub = Hub(
        endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT,
        token or os.environ.get("HF_TOKEN"),
    )
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            return _cached(home, wanted) or _download(hub, wanted, home)
    except OSError as error:
        raise CheckpointError(
            f"{model} cannot be kept in the cache {home}: {error}; free some space there, or name "
            "another folder in HYMOTION_CACHE and run the same command again"
        ) from error


def default_cache() -> Path:
    """The cache of this machine."""
    return Path(os.environ.get("HYMOTION_CACHE") or Path.home() / ".cache" / "hymotion-ray")


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _cached(home: Path, model: HubModel) -> Path | None:
    """The complete folder of a model, or None."""
    commit = model.revision
    if not COMMIT.fullmatch(commit):
        reference = _reference(home, model.revision)
        if not reference.exists():
            return None
        commit = reference.read_text("utf-8").strip()
    folder = _snapshot(home, model, commit)
    return folder / model.subfolder if folder.is_dir() else None


def _download(hub: Hub, model: HubModel, home: Path) -> Path:
    """Fetch and check all files of a model; called by one process at a time."""
    commit, files = hub.list_files(model.repo, model.revision)
    prefix = model.subfolder + "/" if model.subfolder else ""
    wanted = [file for file in files if file.name.startswith(prefix)]
    if not wanted:
        raise CheckpointError(
            f"{model.repo} at {model.revision} has no folder {model.subfolder!r}; it holds "
            f"{', '.join(sorted({f.name.split('/')[0] for f in files})[:10])}"
        )
    target = _snapshot(home, model, commit)
    if not target.is_dir():
        partial = target.with_name(target.name + ".partial")
        for file in wanted:
            _fetch_file(hub, model.repo, commit, file, partial)
        flush_tree(partial)
        os.rename(partial, target)
    reference = _reference(home, model.revision)
    reference.parent.mkdir(exist_ok=True)
    fresh = reference.with_name(reference.name + ".new")
    fresh.write_text(commit, "utf-8")
    os.replace(fresh, reference)
    return target / model.subfolder


def _fetch_file(hub: Hub, repo: str, commit: str, file: HubFile, folder: Path) -> None:
    path = folder / file.name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{repo} names a file outside its folder, {file.name!r}; not fetched")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        hub.download(repo, commit, file, path)


def _snapshot(home: Path, model: HubModel, commit: str) -> Path:
    part = "--" + model.subfolder.replace("/", "--") if model.subfolder else ""
    return home / f"{commit}{part}"


def _reference(home: Path, revision: str) -> Path:
    return home / "refs" / revision.replace("/", "--")
