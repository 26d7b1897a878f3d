"""Prompt files of any size are read at the same memory."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hymotion_ray.formats.prompts import iter_prompts

_SENTENCE = "A person walks forward, number {}, then turns around and waves with the right hand."
_PEAKS = """
import pathlib, sys
from hymotion_ray.formats.prompts import iter_prompts

def peak_kb():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])

for path in sys.argv[1:]:
    print(sum(1 for _ in iter_prompts(path)), peak_kb())
"""


def _write(path: Path, num_rows: int) -> None:
    rows = ((f"clip_{n:07d}", _SENTENCE.format(n), 20 + n % 340) for n in range(num_rows))
    if path.suffix == ".parquet":
        ids, texts, frames = zip(*rows, strict=True)
        pq.write_table(pa.table({"id": ids, "text": texts, "num_frames": frames}), path)
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        if path.suffix == ".txt":
            file.writelines(f"{text}#{frames}#{i}\n" for i, text, frames in rows)
        elif path.suffix == ".jsonl":
            file.writelines(
                json.dumps({"id": i, "text": text, "num_frames": frames}) + "\n"
                for i, text, frames in rows
            )
        elif path.suffix == ".csv":
            csv.writer(file).writerows([("id", "text", "num_frames"), *rows])
        else:
            json.dump({"g": [f"{text}#{frames}#{i}" for i, text, frames in rows]}, file)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("suffix", "allowed_mb"),
    # Parquet: the pages of one row group are held while its rows are read.
    [(".txt", 8), (".jsonl", 8), (".csv", 8), (".json", 8), (".parquet", 64)],
)
def test_ten_times_the_rows_take_no_more_memory(tmp_path, suffix, allowed_mb):
    paths = []
    for num_rows in (20_000, 200_000):
        paths.append(tmp_path / f"p{num_rows}{suffix}")
        _write(paths[-1], num_rows)
    done = subprocess.run(
        [sys.executable, "-c", _PEAKS, *map(str, paths)], capture_output=True, check=True, text=True
    )
    (few, peak_few), (many, peak_many) = (
        tuple(map(int, line.split())) for line in done.stdout.splitlines()
    )
    assert (few, many) == (20_000, 200_000)
    assert peak_many - peak_few < allowed_mb * 1024


def test_rows_come_before_the_file_is_read_to_its_end(tmp_path):
    path = tmp_path / "p.txt"
    _write(path, 20_000)
    rows = iter_prompts(path)
    first = next(rows)
    assert (first.prompt_id, first.line) == ("clip_0000000", 1)
    path.write_text("")  # what was not read yet is gone
    assert sum(1 for _ in rows) < 19_999
