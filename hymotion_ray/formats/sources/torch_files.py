"""Which of the formats that are stored by `torch.save` a file is, loaded with weights only."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from hymotion_ray.errors import InputError, SourceError
from hymotion_ray.formats.sources import gvhmr
from hymotion_ray.formats.sources.chunks import ChunkKeys, is_chunk, read_chunk
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import local_path
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.torch_file import read_torch_file


def read_torch_source(file: SourceFile, keys: ChunkKeys) -> Iterator[SourceClip | SourceReject]:
    """The clips of a GVHMR result or a chunk file; `SourceError` (no_motion) for others."""
    with local_path(file.path, file.member) as path:
        _check_archive(path)
        try:
            content = read_torch_file(path, arrays=True)
        except InputError as cause:
            named = re.search(r"it asks for ([\w.]+)", str(cause))
            if named is None:
                raise SourceError(str(cause), "damaged") from cause
            raise SourceError(
                f"the file asks for {named[1]}; only tensors, plain values and numpy arrays are"
                " loaded, since anything else can run code. Nothing of it has run",
                "unsafe_pickle",
            ) from cause
        if isinstance(content, dict) and (gvhmr.KEY in content or gvhmr.CAMERA_KEY in content):
            yield from gvhmr.read_gvhmr(file, content)
        elif is_chunk(content, keys):
            yield from read_chunk(file, content, keys)
        else:
            keyed = isinstance(content, dict) and ", ".join(map(str, list(content)[:6]))
            raise SourceError(
                f"no motion in it: a {type(content).__name__}{f' with {keyed}' if keyed else ''};"
                f" known are GVHMR ({gvhmr.KEY}) and lists of clips ({', '.join(keys.poses)}, ...)",
                "no_motion",
            )


def _check_archive(path: Path) -> None:
    """`SourceError` (zip_bomb) for an archive whose members claim more than the file holds.

    torch stores its records unpacked, so their sizes add up to at most that of the file.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    claimed = sum(member.file_size for member in members)
    if claimed > path.stat().st_size or any(m.compress_type != zipfile.ZIP_STORED for m in members):
        raise SourceError(
            f"records of {claimed} bytes in a file of {path.stat().st_size}: packed or overlapping,"
            " which torch.save does not write",
            "zip_bomb",
        )
