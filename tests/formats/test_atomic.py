"""Outputs on a local disk: whole or not at all, below their folder, with errors that help."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats import atomic
from hymotion_ray.formats.atomic import Store, open_store, read_bytes, write_bytes


@pytest.fixture(name="pauses")
def no_pauses(monkeypatch):
    """Retries without waiting; gives the pauses that were asked for."""
    pauses: list[float] = []
    monkeypatch.setattr(atomic.time, "sleep", pauses.append)
    return pauses


def test_what_is_written_is_read_back(tmp_path):
    store = open_store(tmp_path / "out")
    for name, data in [("a.npz", b"1"), ("motions/g/ab/x_s0.npz", b""), ("走.bin", bytes(10**6))]:
        store.write_bytes(name, data)
        assert store.read_bytes(name) == data
        assert store.exists(name)
        assert Path(store.path(name)).read_bytes() == data
    store.write_bytes("a.npz", b"2")
    assert store.read_bytes("a.npz") == b"2"
    assert store.list_files() == ["a.npz", "motions/g/ab/x_s0.npz", "走.bin"]
    assert store.list_files("motions", suffix=".npz") == ["motions/g/ab/x_s0.npz"]
    assert store.list_files("nowhere") == []
    assert len(store.list_files(limit=2)) == 2
    store.remove("a.npz")
    store.remove("a.npz")
    assert not store.exists("a.npz")
    assert not store.exists("motions")


def test_single_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "d" / "x.bin", "y.bin", (tmp_path / "z.bin").as_uri()):
        write_bytes(path, b"data")
        assert read_bytes(path) == b"data"
    assert sorted(os.listdir(tmp_path)) == ["d", "y.bin", "z.bin"]


def test_a_relative_store_keeps_its_place_and_travels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pickle.loads(pickle.dumps(store)).write_bytes("a", b"1")
    assert (tmp_path / "out" / "a").read_bytes() == b"1"
    assert store.url("a") == str(tmp_path / "out" / "a")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//b", "a/./b", "a\\b", "a\0"])
def test_names_stay_below_the_store(tmp_path, name):
    store = open_store(tmp_path / "out")
    with pytest.raises(OutputError, match="below"):
        store.write_bytes(name, b"")
    assert not (tmp_path / "out").exists()


def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        open_store(tmp_path).write_bytes("a", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


_WRITER = """
import sys
from hymotion_ray.formats.atomic import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
size = 0
while True:
    size += 1
    store.write_bytes("g/clip.npz", bytes([size % 256]) * 3_000_000)
"""


def test_a_writer_killed_at_any_time_leaves_whole_files(tmp_path):
    for wait in (0.0, 0.013, 0.05):
        command = [sys.executable, "-c", _WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
        store = open_store(tmp_path)
        assert set(store.list_files()) <= {"g/clip.npz"}
        if store.exists("g/clip.npz"):
            data = store.read_bytes("g/clip.npz")
            assert data == data[:1] * 3_000_000


def test_leftovers_are_hidden_and_removed_once_old(tmp_path):
    store = open_store(tmp_path)
    store.write_bytes("g/a.npz", b"1")
    left = tmp_path / "g" / ".0123456789abcdef.tmp"
    left.write_bytes(b"half")
    assert store.list_files() == ["g/a.npz"]
    assert store.remove_leftovers() == 0
    os.utime(left, (0, 0))
    assert store.remove_leftovers() == 1
    assert os.listdir(tmp_path / "g") == ["a.npz"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, pauses):
    store = open_store(tmp_path)
    store.write_bytes("a", b"old")

    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OutputError, match=r"a cannot be written.*disk is full; free space"):
        store.write_bytes("a", b"new")
    assert os.listdir(tmp_path) == ["a"]
    assert store.read_bytes("a") == b"old"
    assert pauses == []


def test_a_passing_error_is_tried_again(tmp_path, monkeypatch, pauses):
    store, sync, failures = open_store(tmp_path), os.fsync, [errno.EIO, errno.ESTALE]

    def flaky(handle):
        if failures:
            raise OSError(failures.pop(), "flaky disk")
        sync(handle)

    monkeypatch.setattr(atomic.os, "fsync", flaky)
    store.write_bytes("a", b"1")
    assert store.read_bytes("a") == b"1"
    assert len(pauses) == 2


def test_an_error_that_stays_is_told_with_its_place(tmp_path, monkeypatch, pauses):
    def broken(_handle):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(atomic.os, "fsync", broken)
    with pytest.raises(OutputError, match=r"broken disk; tried 4 times"):
        open_store(tmp_path).write_bytes("a", b"1")
    assert len(pauses) == 3
    assert os.listdir(tmp_path) == []


def test_missing_rights_fail_at_once(tmp_path, monkeypatch, pauses):
    def denied(*_args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(atomic.os, "open", denied)
    with pytest.raises(OutputError, match="no permission"):
        open_store(tmp_path).write_bytes("a", b"1")
    assert pauses == []


def test_files_where_folders_must_be(tmp_path, pauses):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        open_store(tmp_path / "file")
    with pytest.raises(OutputError, match="no file stands where a folder must"):
        open_store(tmp_path).write_bytes("file/a", b"1")
    with pytest.raises(OutputError, match="cannot be read"):
        open_store(tmp_path).read_bytes("missing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        open_store(tmp_path).write_bytes("folder", b"1")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert pauses == []


def test_stores_of_unknown_kind():
    with pytest.raises(InputError, match="scheme"):
        open_store("ftp://host/out")


def test_many_processes_make_the_same_folders(tmp_path):
    code = (
        "import sys; from hymotion_ray.formats.atomic import Store;"
        "[Store(sys.argv[1]).write_bytes(f'a/{n}/b/{sys.argv[2]}', b'x') for n in range(20)]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)]) for n in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(Store(str(tmp_path)).list_files()) == 60
