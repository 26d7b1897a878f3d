"""Previews of files, folders of files and Parquet shards."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_motions import stand, tumble

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions import encode_motion, save_motion
from hymotion_ray.formats.preview import iter_motions, write_preview


def prompts(sources) -> list[str]:
    return [str(motion.meta.get("prompt")) for motion in iter_motions(sources)]


def test_folder_shows_each_clip_once(tmp_path):
    for name in ("a", "b"):
        motion = stand(2, meta={"prompt": name})
        for suffix in ("npz", "glb", "bvh", "fbx"):
            save_motion(motion, tmp_path / "motions" / "group" / f"{name}.{suffix}")
    (tmp_path / "config.json").write_text("{}")
    assert prompts([tmp_path]) == ["a", "b"]
    assert prompts([tmp_path, tmp_path / "motions" / "group" / "b.glb"]) == ["a", "b", "b"]


def test_shards_are_read_in_order(tmp_path):
    (tmp_path / "shards").mkdir()
    for part in range(2):
        clips = [encode_motion(stand(2, meta={"prompt": f"{part}{k}"}), "npz") for k in range(2)]
        pq.write_table(pa.table({"npz": clips}), tmp_path / "shards" / f"part-{part}.parquet")
    assert prompts([tmp_path]) == ["00", "01", "10", "11"]


@pytest.mark.parametrize("suffix", ["html", "PNG", "mp4"])
def test_every_kind_is_written(suffix, tmp_path):
    if suffix != "html":
        pytest.importorskip("PIL")
        pytest.importorskip("imageio_ffmpeg")
    save_motion(tumble(num_frames=4), tmp_path / "clip.npz")
    out = tmp_path / f"show.{suffix}"
    assert write_preview([tmp_path / "clip.npz"], out) == 1
    assert out.stat().st_size > 1000


def test_limit(tmp_path):
    for k in range(3):
        save_motion(stand(2), tmp_path / f"{k}.npz")
    assert write_preview([tmp_path], tmp_path / "show.html", limit=2) == 2


def test_what_cannot_be_shown(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no motion"):
        write_preview([tmp_path / "empty"], tmp_path / "show.html")
    with pytest.raises(InputError, match="no such"):
        write_preview([tmp_path / "none"], tmp_path / "show.html")
    with pytest.raises(OutputError, match=r"\.html, \.mp4, \.png"):
        write_preview([tmp_path], tmp_path / "show.gif")
    with pytest.raises(OutputError, match="limit"):
        write_preview([tmp_path], tmp_path / "show.html", limit=0)


def test_shards_without_clips_are_named(tmp_path):
    (tmp_path / "shards").mkdir()
    pq.write_table(pa.table({"transl": [1.0]}), tmp_path / "shards" / "part-0.parquet")
    with pytest.raises(InputError, match=r"part-0.*no column 'npz'"):
        write_preview([tmp_path], tmp_path / "show.html")
    (tmp_path / "shards" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"part-0.*not a Parquet file"):
        write_preview([tmp_path], tmp_path / "show.html")
