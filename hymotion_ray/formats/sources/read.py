"""Reads one file of a collection: its format's reader, guarded, with captions attached.

The table below is the list of formats. Knows that a bad file or clip becomes a `SourceReject` and
never an exception. Does not know any format.
"""

from __future__ import annotations

import dataclasses
import struct
import zipfile
from collections.abc import Callable, Iterator

import numpy as np

from hymotion_ray.errors import HyMotionError, MissingDependencyError, SourceError
from hymotion_ray.formats.sources.asf_amc import read_amc_file
from hymotion_ray.formats.sources.bvh import read_bvh_file
from hymotion_ray.formats.sources.caption_index import CaptionIndex
from hymotion_ray.formats.sources.chunks import ChunkKeys
from hymotion_ray.formats.sources.clip import Caption, SourceClip, SourceReject
from hymotion_ray.formats.sources.deepmimic_clip import read_deepmimic_file
from hymotion_ray.formats.sources.fbx import read_fbx_file
from hymotion_ray.formats.sources.frame_rate import checked_rate
from hymotion_ray.formats.sources.gltf import read_glb_file
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.motionx import read_npy_file
from hymotion_ray.formats.sources.npz import read_npz_file
from hymotion_ray.formats.sources.parquet import read_parquet_file
from hymotion_ray.formats.sources.pickles import read_pickle_file
from hymotion_ray.formats.sources.torch_files import read_torch_source

Clips = Iterator[SourceClip | SourceReject]
READERS: dict[str, Callable[[SourceFile], Clips]] = {
    "npz": read_npz_file,  # AMASS, our own, Kimodo, ROMP
    "npy": read_npy_file,  # Motion-X
    "bvh": read_bvh_file,
    "amc": read_amc_file,
    "deepmimic": read_deepmimic_file,
    "pickle": read_pickle_file,  # AIST++, WHAM
    "glb": read_glb_file,  # VRMA too
    "fbx": read_fbx_file,
    "parquet": read_parquet_file,  # shards of a render or of a dataset
}
"""Readers by kind of file; `torch` (GVHMR, chunks) is the one that takes a key map."""

# What damaged bytes may raise inside a library that a reader uses.
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(OSError, EOFError, MemoryError, RuntimeError, struct.error, zipfile.BadZipFile),
)
_CODES = {"bomb": "zip_bomb", "unknown": "unknown_kind"}
_MAY_BE_MOTION = ("unreadable", "bomb", "empty", "unknown")
_SECONDS_SLACK = 0.25


def read_source(
    file: SourceFile, *, captions: CaptionIndex | None = None, chunk_keys: ChunkKeys | None = None
) -> Clips:
    """The clips of one file, one at a time, and what of it is refused. Raises nothing.

    captions: added to those that a file brings itself. chunk_keys: names of the fields of `.pt`
    chunk files. A file that is no motion gives one reject with `is_motion` False.
    """
    if file.kind != "torch" and file.kind not in READERS:
        yield SourceReject(
            name=file.name,
            code=_CODES.get(file.kind, file.kind),
            message=file.note or f"a file of kind {file.kind}, which holds no motion",
            is_motion=file.kind in _MAY_BE_MOTION,
        )
        return
    try:
        if file.kind == "torch":
            found: Clips = read_torch_source(file, chunk_keys or ChunkKeys())
        else:
            found = READERS[file.kind](file)
        for clip in found:
            yield _finished(clip, file, captions) if isinstance(clip, SourceClip) else clip
    except SourceError as error:
        yield SourceReject(name=file.name, code=error.code, message=str(error))
    except MissingDependencyError as error:
        yield SourceReject(name=file.name, code="missing_dependency", message=str(error))
    except HyMotionError as error:
        yield SourceReject(name=file.name, code="damaged", message=str(error))
    except _DAMAGE as error:
        message = f"damaged in a way that no check names: {type(error).__name__}: {error}"
        yield SourceReject(name=file.name, code="damaged", message=message)


def _finished(
    clip: SourceClip, file: SourceFile, captions: CaptionIndex | None
) -> SourceClip | SourceReject:
    """The clip with its captions in seconds that it has, or why it is no clip after all."""
    try:
        checked_rate(clip.fps, "the clip")
        arrays = [clip.positions] + ([] if clip.rotations is None else [clip.rotations])
        if not all(np.isfinite(array).all() for array in arrays):
            raise SourceError("a frame holds NaN or infinite numbers", "not_finite")
        if clip.num_frames < 1:
            raise SourceError("no frames", "no_frames")
    except SourceError as error:
        return SourceReject(name=clip.name, code=error.code, message=str(error))
    seconds = clip.num_frames / clip.fps
    notes = [str(clip.provenance["warnings"])] if "warnings" in clip.provenance else []
    said = captions.said_seconds(file) if captions else None
    if said is not None and abs(said - seconds) > _SECONDS_SLACK:
        notes.append(f"{seconds:.2f} s long, {said:.2f} s by its captions: frame rate doubtful")
    found = clip.captions
    if captions is not None:
        found += captions.of(file, clip.name.partition("#")[2])
    fitting = tuple(dict.fromkeys(_within(found, seconds)))
    if len(fitting) < len(set(found)):
        notes.append(f"{len(set(found)) - len(fitting)} captions start after the clip's end")
    provenance = clip.provenance | ({"warnings": "; ".join(notes)} if notes else {})
    return dataclasses.replace(clip, captions=fitting, provenance=provenance)


def _within(captions: tuple[Caption, ...], seconds: float) -> Iterator[Caption]:
    for caption in captions:
        if caption.start < seconds:
            yield dataclasses.replace(caption, end=min(caption.end, seconds))
