"""Whatever dies while a job renders, the same command leaves what an unbroken one would have."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from render_driver import Command, clips, manifest

pytestmark = pytest.mark.ray

NUM_ROWS = 4
WORDS = ("walks", "jumps", "waves", "bows", "runs", "turns", "kneels", "sits", "kicks", "claps")
PROMPTS = [f"A person {word}.#{24 + 2 * n}#{word}" for n, word in enumerate(WORDS)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills") / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


@pytest.fixture(scope="module")
def make(ray: ModuleType, prompts: Path, random_model: Path) -> Callable[..., Command]:
    """A command on the session's Ray, in a folder of its own."""
    address = ray.get_runtime_context().gcs_address

    def command(folder: Path, *options: str, own_ray: bool = False) -> Command:
        return Command(
            prompts,
            random_model,
            str(folder / "out"),
            folder / "faults",
            None if own_ray else address,
            ["--samplers", "1", "--rows", str(NUM_ROWS), *options],
        )

    return command


@pytest.fixture(scope="module")
def whole(make: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unbroken run."""
    command = make(tmp_path_factory.mktemp("whole"))
    assert command.run()[0] == 0
    return Path(command.out)


def assert_same(command: Command, whole: Path, num_kills: int) -> None:
    """The folder is the unbroken run's, and no more was computed than kills explain."""
    assert clips(command.out) == clips(whole)
    rows, expected = manifest(command.out), manifest(whole)
    assert set(rows) == set(expected)
    for key, row in rows.items():
        assert {n: row[n] for n in ("status", "sha256", "file", "attempt")} == {
            n: expected[key][n] for n in ("status", "sha256", "file", "attempt")
        }
    computed = command.computed()
    assert len(computed) == len(WORDS)
    assert computed.total() <= len(WORDS) + num_kills * NUM_ROWS


@pytest.mark.slow
def test_processes_killed_at_every_point_of_a_chunk_change_nothing(
    make: Callable[..., Command], whole: Path, tmp_path: Path
) -> None:
    command = make(tmp_path)
    faults = [
        "sample:1:kill",  # mid-batch
        "rename:2:kill:motions/",  # a clip's temporary file is written, its name is not
        "files-written:2:kill",  # files are there, their manifest row is not
        "rename:1:kill:manifest/",  # mid-manifest
    ]
    command.plan(*faults)
    code, output = command.run()
    assert code == 0, output
    assert output.count("died; others take over") == len(faults)
    assert_same(command, whole, len(faults))


def test_a_driver_killed_mid_way_is_followed_by_the_same_command(
    make: Callable[..., Command], whole: Path, tmp_path: Path
) -> None:
    command = make(tmp_path)
    process = command.start()
    command.wait_for("sample", 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    code, output = command.run()
    assert code == 0, output
    assert_same(command, whole, 1)


@pytest.mark.slow
def test_ctrl_c_ends_the_job_cleanly(
    make: Callable[..., Command], whole: Path, tmp_path: Path
) -> None:
    command = make(tmp_path, own_ray=True)
    process = command.start()
    command.wait_for("sample", 2)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted" in output
    done = clips(command.out)
    assert 0 < len(done) < len(WORDS)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    before = {name: os.stat(Path(command.out) / name).st_mtime_ns for name in done}
    command = make(tmp_path)
    assert command.run()[0] == 0
    assert_same(command, whole, 1)
    assert {n: os.stat(Path(command.out) / n).st_mtime_ns for n in done} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "options"),
    [
        ("planned:1", ()),
        ("rename:1:kill:config.json", ()),
        ("closing:1", ()),
        ("extended:1", ("--format", "npz,bvh")),
        ("rename:2:kill:.bvh", ("--format", "npz,bvh")),
        ("rename:1:kill:summary.json", ()),
    ],
)
def test_a_driver_killed_at_a_point_of_its_own(
    make: Callable[..., Command],
    whole: Path,
    tmp_path: Path,
    point: str,
    options: tuple[str, ...],
) -> None:
    command = make(tmp_path)
    if options:
        assert command.run()[0] == 0
        command = make(tmp_path, *options)
    command.plan(point if "kill" in point else f"{point}:kill")
    assert command.run()[0] == -signal.SIGKILL
    code, output = command.run()
    assert code == 0, output
    assert_same(command, whole, 0)
    if options:
        assert {r["formats"] for r in manifest(command.out).values()} == {"npz,bvh"}
        assert len(list(Path(command.out).rglob("*.bvh"))) == len(WORDS)
