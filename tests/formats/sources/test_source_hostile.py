"""Hostile and damaged files: a true reason, no code run, bounded memory, and nothing lost."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from made_files import amass_arrays, npy_with_header, npz_with, save_npz, smpl_walk

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.motions.bvh import write_bvh
from hymotion_ray.formats.motions.glb import write_glb
from hymotion_ray.formats.motions.npz import write_npz
from hymotion_ray.formats.sources import SourceClip, SourceReject, list_sources, read_source
from hymotion_ray.formats.sources.plain_pickle import read_plain_pickle
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import generic_skeleton


def read(path: Path) -> list[SourceClip | SourceReject]:
    return [clip for file in list_sources([path]) for clip in read_source(file)]


def codes(path: Path) -> list[str]:
    found = read(path)
    assert all(isinstance(reject, SourceReject) for reject in found), found
    return [reject.code for reject in found]


class Runs:
    """A pickle of this runs a shell command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


# --- code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_asks_for_a_shell_runs_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    hostile = {"smpl_poses": Runs(marker), "smpl_trans": 1}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(hostile, protocol=protocol))
    (found,) = read(tmp_path / "a.pkl")
    assert isinstance(found, SourceReject)
    assert found.code == "unsafe_pickle"
    assert "system" in found.message
    assert not marker.exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda path, bad: torch.save([{"poses": bad}], path / "a.pt"),
        lambda path, bad: torch.save(
            [{"poses": bad}], path / "a.pt", _use_new_zipfile_serialization=False
        ),
        lambda path, bad: save_npz(path / "a.npz", {"results": np.array(bad, dtype=object)}),
        lambda path, bad: save_npz(
            path / "a.npz", amass_arrays() | {"poses": np.array([bad], dtype=object)}
        ),
        lambda path, bad: np.save(path / "a.npy", np.array([bad], dtype=object), allow_pickle=True),
    ],
    ids=["torch", "old torch", "npz like ROMP's", "npz like AMASS's", "npy"],
)
def test_pickles_inside_other_files_run_nothing(tmp_path: Path, make) -> None:
    marker = tmp_path / "ran"
    make(tmp_path, Runs(marker))
    assert codes(tmp_path) == ["unsafe_pickle"]
    assert not marker.exists()


def test_a_joblib_file_runs_nothing(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    marker = tmp_path / "ran"
    poses, _ = smpl_walk(9, 24)
    joblib.dump({0: {"pose": poses, "trans": Runs(marker)}}, tmp_path / "wham_output.pkl")
    assert codes(tmp_path / "wham_output.pkl") == ["unsafe_pickle"]
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(S'x'\nS'y'\ntR.",
        b"c__builtin__\nexec\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\ndict\n(I99999999999\ntS'd'\ntR.",
        b"cnumpy\nndarray\n(I99999999999\ntR.",
        b"cbuiltins\nbytearray\n(I99999999999\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.",
        b"cnumpy\ndtype\n(S'V999999999999999'\ntR.",
        b"(icollections\nOrderedDict\n}S'__class__'\nS'x'\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct\n}S'__code__'\nS'x'\nsb.",
        b"P1\n.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\x00\x00abc.",  # 281 TB of bytes
        b"(" * 100_000 + b".",
        b"",
        b".",
        b"K\x01",
    ],
)  # fmt: skip
def test_pickle_programs_are_refused_or_plain_data(program: bytes) -> None:
    with pytest.raises(SourceError) as error:
        read_plain_pickle(program)
    assert error.value.code in ("unsafe_pickle", "damaged", "truncated")


def test_plain_pickles_of_every_protocol_and_of_joblib_are_read(tmp_path: Path) -> None:
    content = {
        "f": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "i": np.arange(5, dtype=np.int16),
        "text": ["a", b"b", None, True, 2.5, (1, {2})],
        "scalar": np.float32(1.5),
        "object": np.array([{"x": 1}, None], dtype=object),
        "empty": np.zeros((0, 3)),
    }
    written = [pickle.dumps(content, protocol=p) for p in range(6)]
    try:
        import joblib
    except ImportError:
        pass
    else:
        plain = {k: v for k, v in content.items() if k != "object"}
        joblib.dump(plain | {"object": content["text"]}, tmp_path / "a.pkl")
        written.append((tmp_path / "a.pkl").read_bytes())
    for data in written:
        back = read_plain_pickle(data)
        np.testing.assert_array_equal(back["f"], content["f"])
        np.testing.assert_array_equal(back["i"], content["i"])
        assert back["text"] == content["text"]
        assert back["scalar"] == 1.5
        assert back["empty"].shape == (0, 3)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 156), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 156), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1.5, 156), }",
        "{'descr': '|V99999999999', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': __import__('os').system('true'), 'shape': (1,), }",
        "{" * 5000,
        "no header",
    ],
)
def test_headers_that_lie_about_their_size(tmp_path: Path, header: str) -> None:
    npy = npy_with_header(header, b"\0" * 64)
    (tmp_path / "a.npy").write_bytes(npy)
    assert codes(tmp_path / "a.npy") == ["bad_header"]
    trans = io.BytesIO()
    np.save(trans, np.zeros((3, 3)))
    members = {"poses.npy": npy, "trans.npy": trans.getvalue(), "fps.npy": trans.getvalue()}
    (tmp_path / "a.npz").write_bytes(npz_with(members))
    assert codes(tmp_path / "a.npz") == ["bad_header"]


def zeros_member(shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(shape, dtype=np.float32))
    return out.getvalue()


def test_an_npz_that_unpacks_to_much_more_is_a_bomb(tmp_path: Path) -> None:
    big = zeros_member((140_000, 156))  # 87 MB that pack to 85 kB
    small = zeros_member((3, 3))
    members = {"poses.npy": big, "trans.npy": small, "fps.npy": small}
    content = npz_with(members, packed=True)
    assert len(content) < 1 << 20
    (tmp_path / "a.npz").write_bytes(content)
    assert codes(tmp_path / "a.npz") == ["zip_bomb"]


def test_a_bomb_beside_a_clip_in_an_archive_stops_nothing(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.bvh", b"0 " * (40 << 20))
        archive.writestr("nested.zip", npz_with({"a.npy": b"x"}))
        archive.writestr("walk.bvh", write_bvh(walk()))
        archive.writestr("../outside.bvh", write_bvh(walk()))
        archive.writestr(".hidden.bvh", b"x")
    (tmp_path / "all.zip").write_bytes(buffer.getvalue())
    found = {clip.name: clip for clip in read(tmp_path)}
    assert {n: getattr(c, "code", "read") for n, c in found.items()} == {
        "all.zip/bomb.bvh": "zip_bomb",
        "all.zip/nested.zip": "unknown_kind",
        "all.zip/walk.bvh": "read",
        "all.zip/../outside.bvh": "read",  # nothing is unpacked, so nothing lands outside
        "all.zip/.hidden.bvh": "hidden",
    }
    assert not (tmp_path.parent / "outside.bvh").exists()


def test_an_archive_whose_directory_lies(tmp_path: Path) -> None:
    content = npz_with({"walk.bvh": write_bvh(walk())})
    size = len(write_bvh(walk()))
    lying = content.replace(size.to_bytes(4, "little"), (size + 5).to_bytes(4, "little"))
    assert lying != content
    (tmp_path / "a.zip").write_bytes(lying)
    assert codes(tmp_path)[0] in ("damaged", "unreadable")
    (tmp_path / "a.zip").write_bytes(content[:-30])
    assert codes(tmp_path) == ["unreadable"]


def test_packed_torch_records_are_a_bomb(tmp_path: Path) -> None:
    torch.save([{"poses": torch.zeros(1000, 66), "trans": torch.zeros(1000, 3)}], tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {m.filename: archive.read(m) for m in archive.infolist()}
    (tmp_path / "a.pt").write_bytes(npz_with(members, packed=True))
    assert codes(tmp_path / "a.pt") == ["zip_bomb"]


def test_a_tensor_of_one_number_spread_over_years_is_too_large(tmp_path: Path) -> None:
    poses = torch.zeros(1).expand(10_000_000, 66)
    torch.save([{"poses": poses, "trans": torch.zeros(3).expand(10_000_000, 3)}], tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 10_000
    assert codes(tmp_path / "a.pt") == ["too_large"]


def test_memory_stays_small_on_files_that_claim_much(tmp_path: Path) -> None:
    """In a process of its own: what 10 GB claims cost at the peak."""
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 156), }"
    (tmp_path / "a.npy").write_bytes(npy_with_header(header))
    (tmp_path / "a.bvh").write_bytes(
        write_bvh(walk()).replace(b"Frames: 30", b"Frames: 1000000000000")
    )
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\x00\x00abc.")
    code = (
        "import resource, sys\n"
        "from hymotion_ray.formats.sources import list_sources, read_source\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"for file in list_sources([{str(tmp_path)!r}]):\n"
        "    for clip in read_source(file): print(file.name, getattr(clip, 'code', 'read'))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    *lines, grown = done.stdout.split("\n")[:-1]
    assert lines == ["a.bvh read", "a.npy bad_header", "a.pkl damaged"]
    assert int(grown) / 1024 < 120  # MB


# --- damage ---------------------------------------------------------------------------------------


def walk() -> Motion:
    poses, trans = smpl_walk(30, 22)
    from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix

    rotations = rotvec_to_matrix(torch.from_numpy(poses.reshape(-1, 22, 3)))
    return Motion.from_rotations(
        matrix_to_rot6d(rotations), torch.from_numpy(trans), generic_skeleton(), 30.0
    )


def made_files() -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, **amass_arrays(30))
    chunk = io.BytesIO()
    poses, trans = smpl_walk(30)
    torch.save([{"poses": poses, "trans": trans, "text": "x"}], chunk)
    row = [0.03, 0, 0.9, 0, *[1, 0, 0, 0] * 4, 0, *[1, 0, 0, 0] * 2, 0]
    row += [*[1, 0, 0, 0], 0, *[1, 0, 0, 0] * 2, 0]
    deepmimic = {"Loop": "none", "Frames": [row[:44]] * 30}
    return {
        "a.npz": buffer.getvalue(),
        "own.npz": write_npz(walk()),
        "a.bvh": write_bvh(walk()),
        "a.glb": write_glb(walk()),
        "a.pkl": pickle.dumps({"smpl_poses": poses[:, :72], "smpl_trans": trans}),
        "a.pt": chunk.getvalue(),
        "a.txt": json.dumps(deepmimic).encode(),
    }


@pytest.mark.parametrize("name", list(made_files()))
def test_files_as_made_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(made_files()[name])
    assert [type(clip) for clip in read(tmp_path)] == [SourceClip]


@pytest.mark.parametrize("name", list(made_files()))
def test_files_cut_off_anywhere_never_raise(tmp_path: Path, name: str) -> None:
    content = made_files()[name]
    for share in (0.02, 0.2, 0.5, 0.8, 0.97):
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
        found = read(tmp_path)
        assert len(found) == 1
        assert isinstance(found[0], SourceReject), share


@pytest.mark.parametrize("name", list(made_files()))
def test_random_damage_gives_clips_or_reasons_and_never_raises(tmp_path: Path, name: str) -> None:
    content = made_files()[name]
    draw = np.random.default_rng(len(content))
    for _ in range(40):
        bad = bytearray(content)
        for _ in range(int(draw.integers(1, 12))):
            bad[int(draw.integers(len(bad)))] = int(draw.integers(256))
        (tmp_path / name).write_bytes(bytes(bad))
        for clip in read(tmp_path):
            if isinstance(clip, SourceClip):
                assert np.isfinite(clip.positions).all()
            else:
                assert clip.code
                assert clip.message


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\noid"])
@pytest.mark.parametrize("suffix", ["npz", "npy", "bvh", "glb", "pkl", "pt", "parquet", "amc"])
def test_files_that_were_never_fetched(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(content)
    (code,) = codes(tmp_path)
    if not content:
        assert code == "empty"
    elif suffix in ("npz", "npy", "bvh", "glb", "pkl"):
        assert code == "lfs_pointer"
    else:
        assert code in ("damaged", "no_skeleton")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Frames": []}, "no_frames"),
        ({"Frames": [[1, 2]]}, "bad_shape"),
        ({"Frames": [[float("nan")] * 44] * 3}, "not_finite"),
        ({"Frames": [[0.0] * 44] * 3}, "not_finite"),
        ({"Frames": [[1e9] + [1.0] * 43] * 3}, "bad_fps"),
        ({"Frames": "x"}, "bad_syntax"),
    ],
)
def test_deepmimic_files_of_bad_numbers(tmp_path: Path, change: dict, code: str) -> None:
    (tmp_path / "a.txt").write_text(json.dumps({"Loop": "none"} | change))
    assert codes(tmp_path) == [code]


def test_limits_are_real_on_this_machine() -> None:
    """The test above compares peaks in kB, which is what Linux reports."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 10_000
