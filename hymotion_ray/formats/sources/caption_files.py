"""Caption files in the forms in use: CSV, HumanML3D, BABEL, and the annotation unifier's JSON.

Knows their columns, trims and times. A row that cannot be read is a reject of the index; it never
stops the others. Does not read motions.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from pyarrow import fs

from hymotion_ray.errors import InputError, SourceError
from hymotion_ray.formats.locations import locate
from hymotion_ray.formats.sources.caption_index import CaptionIndex, amass_key, place_key
from hymotion_ray.formats.sources.clip import Caption, SourceReject
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.listing import parent_folder

MAX_CAPTION_CHARACTERS = 2000
HUMANML3D_FPS = 20.0
# Seconds that HumanML3D cuts off the start of a take before it counts frames, by set.
_TRIMS = {
    "eyes_japan_dataset": 3.0,
    "mpi_hdm05": 3.0,
    "totalcapture": 1.0,
    "mpi_limits": 1.0,
    "transitions_mocap": 0.5,
}
_TRUE = ("1", "true", "yes")


def load_captions(paths: Iterable[str]) -> CaptionIndex:
    """The captions of all these files, or folders of HumanML3D (index.csv beside texts/).

    `InputError` for a path that is missing or in no known form; bad rows are `rejects`.
    """
    index = CaptionIndex()
    for path in paths:
        location = locate(path)
        kind = location.filesystem.get_file_info(location.path).type
        if kind == fs.FileType.NotFound:
            raise InputError(f"{path}: no such captions file")
        if kind == fs.FileType.Directory:
            path = f"{path.rstrip('/')}/index.csv"
        _load_one(path, index)
    return index


def _load_one(path: str, index: CaptionIndex) -> None:
    try:
        content = read_file(path)
    except SourceError as cause:
        raise InputError(f"{path}: {cause}") from cause
    if path.lower().endswith(".json"):
        _read_json(path, content, index)
        return
    rows = csv.DictReader(_lines(content))
    try:
        columns = {(name or "").strip().lower() for name in rows.fieldnames or ()}
    except csv.Error as cause:
        raise InputError(f"{path}: not CSV: {cause}") from cause
    if {"source_path", "new_name"} <= columns:
        _read_humanml3d(path, rows, index)
    elif {"file", "caption"} <= columns:
        _read_table(path, rows, index)
    else:
        raise InputError(
            f"{path}: columns {', '.join(sorted(columns)) or 'none'}; allowed: file and caption"
            " (and clip, start, end, mirrored), or HumanML3D's source_path and new_name"
        )


def _lines(content: bytes) -> Iterator[str]:
    """Lines of text; bytes that are no UTF-8 stay as lone surrogates, for the row to be refused."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    yield from text.splitlines(keepends=True)


def _caption(
    text: str, start: float = 0.0, end: float = math.inf, mirrored: bool = False
) -> Caption:
    text = " ".join(text.split())
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise SourceError("not UTF-8; save the captions as UTF-8", "bad_encoding")
    if not text:
        raise SourceError("an empty caption", "empty_caption")
    if len(text) > MAX_CAPTION_CHARACTERS:
        raise SourceError(
            f"{len(text)} characters; at most {MAX_CAPTION_CHARACTERS}", "caption_too_long"
        )
    if not (math.isfinite(start) and start >= 0 and end > start):
        raise SourceError(f"from {start} to {end} s; allowed: 0 <= start < end", "bad_times")
    return Caption(text=text, start=start, end=end, mirrored=mirrored)


def _seconds(text: Any, default: float) -> float:
    if text is None or not str(text).strip():
        return default
    try:
        return float(text)
    except (TypeError, ValueError) as cause:
        raise SourceError(f"{str(text)[:30]!r} is not a time in seconds", "bad_times") from cause


# --- a table of captions --------------------------------------------------------------------------


def _read_table(path: str, rows: csv.DictReader, index: CaptionIndex) -> None:
    """Columns file, caption, and where needed clip, start, end, mirrored."""
    folder = parent_folder(path)
    try:
        for row in rows:
            cells = {(k or "").strip().lower(): v for k, v in row.items() if isinstance(v, str)}
            try:
                file = (cells.get("file") or "").strip()
                if not file:
                    raise SourceError("no file named", "bad_row")
                caption = _caption(
                    cells.get("caption") or "",
                    _seconds(cells.get("start"), 0.0),
                    _seconds(cells.get("end"), math.inf),
                    (cells.get("mirrored") or "").strip().lower() in _TRUE,
                )
            except SourceError as error:
                _reject(index, f"{path}:{rows.line_num}", error)
                continue
            entry = ((cells.get("clip") or "").strip(), caption)
            index.by_place.setdefault(place_key(f"{folder}/{file}"), []).append(entry)
    except csv.Error as cause:
        raise InputError(f"{path}:{rows.line_num}: not CSV: {cause}") from cause


def _reject(index: CaptionIndex, name: str, error: SourceError) -> None:
    index.rejects.append(
        SourceReject(name=name, code=error.code, message=str(error), is_motion=False)
    )


# --- HumanML3D ------------------------------------------------------------------------------------


def _read_humanml3d(path: str, rows: csv.DictReader, index: CaptionIndex) -> None:
    """index.csv over AMASS: spans at 20 fps after a trim, captions in texts/<name>.txt.

    The texts of a mirrored clip, M<name>.txt, become mirrored captions of the same span.
    """
    folder = parent_folder(path)
    for row in rows:
        name = PurePosixPath(row.get("new_name") or "").stem
        source = (row.get("source_path") or "").replace("\\", "/")
        where = f"{path}:{rows.line_num}"
        try:
            parts = [p for p in source.split("/") if p not in ("", ".", "pose_data")]
            if len(parts) < 2 or not name:
                raise SourceError(f"source_path {source[:60]!r}", "bad_row")
            if parts[0] == "humanact12":
                raise SourceError(
                    "humanact12 has joint positions only, without rotations", "positions_only"
                )
            trim = _TRIMS.get(parts[0].lower(), 0.0)
            start = trim + _seconds(row.get("start_frame"), 0.0) / HUMANML3D_FPS
            last = _seconds(row.get("end_frame"), -1.0)
            end = trim + last / HUMANML3D_FPS if last >= 0 else math.inf
            for prefix, mirrored in (("", False), ("M", True)):
                text = f"{folder}/texts/{prefix}{name}.txt"
                found = list(_humanml3d_texts(text, start, end, mirrored, index))
                index.by_take.setdefault(amass_key("/".join(parts)), []).extend(found)
        except SourceError as error:
            _reject(index, where, error)


def _humanml3d_texts(
    path: str, start: float, end: float, mirrored: bool, index: CaptionIndex
) -> Iterator[Caption]:
    """Lines `caption#words#from#to`; a text file that is not there has no captions."""
    location = locate(path)
    if location.filesystem.get_file_info(location.path).type != fs.FileType.File:
        return
    for number, line in enumerate(_lines(read_file(path)), start=1):
        if not line.strip():
            continue
        try:
            caption, first, last = humanml3d_line(line)
            from_s = start + first
            to_s = end if last is None else min(start + last, end)
            yield _caption(caption, from_s, to_s, mirrored)
        except SourceError as error:
            _reject(index, f"{path}:{number}", error)


def humanml3d_line(line: str) -> tuple[str, float, float | None]:
    """Caption, start and end in seconds of its clip; end None for the whole clip.

    Tolerates what the files hold: `nan` (whole), start after end (swapped), both equal (whole).
    """
    parts = line.rstrip("\r\n").rsplit("#", 3)
    if len(parts) != 4:
        raise SourceError(f"{line[:60]!r}; expected caption#words#start#end", "bad_row")
    start, end = _seconds(parts[2], 0.0), _seconds(parts[3], 0.0)
    if math.isnan(start) or math.isnan(end) or start == end:
        return parts[0], 0.0, None
    return parts[0], min(start, end), max(start, end)


# --- JSON -----------------------------------------------------------------------------------------


def _read_json(path: str, content: bytes, index: CaptionIndex) -> None:
    try:
        entries = json.loads(content)
    except UnicodeDecodeError as cause:
        raise InputError(f"{path}: byte {cause.start} is not UTF-8") from cause
    except (ValueError, RecursionError) as cause:
        raise InputError(f"{path}: not JSON: {cause}") from cause
    if not isinstance(entries, dict) or not entries:
        raise InputError(f"{path}: expected an object of takes, as BABEL's train.json")
    for key, entry in entries.items():
        where = f"{path}:{key}"
        if not isinstance(entry, dict):
            _reject(index, where, SourceError("not an object", "bad_row"))
        elif "feat_p" in entry:
            _read_babel(where, entry, index)
        elif isinstance(entry.get("annotations"), list):
            _add(
                where, amass_key(str(entry.get("path") or key)), entry["annotations"], "text", index
            )
            _set_seconds(amass_key(str(entry.get("path") or key)), entry.get("duration"), index)
        else:
            _reject(index, where, SourceError("neither feat_p nor annotations", "bad_row"))


def _read_babel(where: str, entry: dict[str, Any], index: CaptionIndex) -> None:
    """Labels of the whole take (seq_ann) and of its parts (frame_ann); either may be null.

    `transition`, a label of the time between two others, says nothing of the motion and is left.
    """
    # feat_p repeats the set: Set/Set/subject/take_poses.npz
    take = amass_key(str(entry["feat_p"]))
    _set_seconds(take, entry.get("dur"), index)
    for key in ("seq_ann", "seq_anns", "frame_ann", "frame_anns"):
        found = entry.get(key)
        for annotation in found if isinstance(found, list) else [found]:
            labels = annotation.get("labels") if isinstance(annotation, dict) else None
            if isinstance(labels, list):
                _add(where, take, labels, "raw_label", index)


def _add(where: str, take: str, labels: list[Any], text: str, index: CaptionIndex) -> None:
    for label in labels:
        try:
            if not isinstance(label, dict):
                raise SourceError("a label that is no object", "bad_row")
            if label.get("proc_label") == "transition":
                continue
            start = label.get("start_t", label.get("start"))
            end = label.get("end_t", label.get("end"))
            caption = _caption(
                str(label.get(text) or ""), _seconds(start, 0.0), _seconds(end, math.inf)
            )
            index.by_take.setdefault(take, []).append(caption)
        except SourceError as error:
            _reject(index, where, error)


def _set_seconds(take: str, value: Any, index: CaptionIndex) -> None:
    if isinstance(value, int | float) and math.isfinite(value) and value > 0:
        index.seconds[take] = float(value)
