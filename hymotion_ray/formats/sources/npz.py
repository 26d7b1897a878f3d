"""Which of the formats that are stored as .npz a file is: told by its array names alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.amass import RATE_KEYS, read_amass
from hymotion_ray.formats.sources.arrays import NpzFile, open_npz
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.file_bytes import local_path
from hymotion_ray.formats.sources.hymotion_npz import read_hymotion_npz
from hymotion_ray.formats.sources.kimodo import read_kimodo
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.romp import read_romp

# The arrays that tell a kind, and its reader; the first that fits.
_KINDS: tuple[
    tuple[tuple[str, ...], Callable[[SourceFile, NpzFile], Iterator[SourceClip]]], ...
] = (
    (("hymotion_schema", "rot6d", "transl"), read_hymotion_npz),
    (("poses", "trans"), read_amass),
    (("posed_joints", "global_rot_mats"), read_kimodo),
    (("results",), read_romp),
)


def read_npz_file(file: SourceFile) -> Iterator[SourceClip]:
    """The clip of an .npz; `SourceError` (no_motion) for one that holds none."""
    with local_path(file.path, file.member) as path, open_npz(path) as arrays:
        for keys, read in _KINDS:
            if all(key in arrays for key in keys):
                yield from read(file, arrays)
                return
        names = ", ".join(arrays.names[:12]) or "nothing"
        if "betas" in arrays and not any(key in arrays for key in ("poses", *RATE_KEYS)):
            raise SourceError(f"a body shape without motion: it has {names}", "no_motion")
        raise SourceError(
            f"no motion in it: it has {names}; known are AMASS (poses, trans), hymotion-ray"
            " (rot6d, transl) and Kimodo (posed_joints, global_rot_mats)",
            "no_motion",
        )
