"""The list of one's own machines: what is read, asked and written; ssh is a stand-in program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

FOLDER = Path(__file__).resolve().parents[2] / "cluster"
HOSTS = FOLDER / "hosts.example"
SSH = """#!/bin/sh
# Answers as the machine whose file is named by the address.
for last in "$@"; do host=${target:-}; target=$last; done
host=${host#*@}
if [ ! -f "$ANSWERS/$host" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
cat "$ANSWERS/$host"
"""


def answer(folder: Path, address: str, cpus: int, *gpus: str) -> None:
    lines = [str(cpus), *gpus, "end", "Docker version 28.0"]
    (folder / address).write_text("\n".join(lines) + "\n")


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Machines as the example list has them, behind a stand-in ssh."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    folder = tmp_path / "answers"
    folder.mkdir()
    answer(folder, "10.0.0.10", 16)
    for number in (11, 12):
        answer(folder, f"10.0.0.{number}", 64, *["NVIDIA A10"] * 4)
    answer(folder, "10.0.0.13", 128, *["NVIDIA A100-SXM4-80GB"] * 8)
    answer(folder, "10.0.0.14", 32)
    return folder


def run(hosts: Path, answers: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = f"{answers.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, str(FOLDER / "onprem.py"), str(hosts), "--image", "R/i:0.1.0", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "ANSWERS": str(answers), "PATH": path},
    )


def test_a_checked_list_becomes_a_file_that_ray_takes(answers: Path) -> None:
    done = run(HOSTS, answers)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    validate_config(prepare_config(config))
    assert config["provider"]["head_ip"] == "10.0.0.10"
    assert config["provider"]["worker_ips"] == [f"10.0.0.{n}" for n in (11, 12, 13, 14)]
    assert config["max_workers"] == 4
    start = " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start


@pytest.mark.parametrize(
    ("addresses", "flags"),
    [
        (
            "192.168.1.5 10.0.0.11",
            "--num-gpus=4 --labels=hymotion-pool=a10,ray.io/accelerator-type=A10 --num-cpus=64"
            ' --resources={"sampler_slot": 4}',
        ),
        (
            "10.0.0.13",
            "--num-gpus=8 --labels=hymotion-pool=a100,ray.io/accelerator-type=A100 --num-cpus=128"
            ' --resources={"sampler_slot": 16}',
        ),
        ("10.0.0.14", "--num-gpus=0 --labels=hymotion-pool=cpu --num-cpus=32"),
    ],
)
def test_each_machine_starts_as_what_it_is(
    answers: Path, tmp_path: Path, addresses: str, flags: str
) -> None:
    """The start command itself is run, with stand-ins for `ray` and `hostname`."""
    command = yaml.safe_load(run(HOSTS, answers).stdout)["worker_start_ray_commands"][1]
    for name, text in {
        "hostname": f"echo {addresses}",
        "ray": 'echo "$RAY_AUTH_MODE:" "$@"',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "RAY_HEAD_IP": "10.0.0.10",
    }
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == f"token: start --address=10.0.0.10:6379 {flags}"


def test_a_machine_that_is_not_in_the_list_does_not_start(answers: Path, tmp_path: Path) -> None:
    command = yaml.safe_load(run(HOSTS, answers).stdout)["worker_start_ray_commands"][1]
    (tmp_path / "bin" / "hostname").write_text("#!/bin/sh\necho 10.0.0.99\n")
    (tmp_path / "bin" / "hostname").chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={"PATH": path}
    )
    assert done.returncode == 1
    assert "not in the list" in done.stderr


def test_differences_name_the_machine_and_what_to_do(answers: Path) -> None:
    answer(answers, "10.0.0.12", 64, *["NVIDIA A10"] * 3)
    done = run(HOSTS, answers)
    assert done.returncode == 1
    assert "10.0.0.12" in done.stderr
    assert "slots=4" in done.stderr
    assert "shows 3" in done.stderr

    answer(answers, "10.0.0.12", 64, *["NVIDIA L4"] * 4)
    assert "10.0.0.12: the list says kind=A10, its GPUs are L4" in run(HOSTS, answers).stderr

    (answers / "10.0.0.12").unlink()
    done = run(HOSTS, answers)
    assert done.returncode == 1
    assert "10.0.0.12: no SSH as ubuntu without a password" in done.stderr
    assert "No route to host" in done.stderr
    assert "ssh-copy-id" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a slots=1\n", "at least a head and one worker"),
        ("a slots=x\nb\n", "line 1"),
        ("a\nb gpus=4\n", "line 2"),
        ("a\nb\na\n", "line 3: a is there twice"),
    ],
)
def test_a_list_that_cannot_be_is_refused(
    answers: Path, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "hosts").write_text(text)
    done = run(tmp_path / "hosts", answers, "--no-check")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stdout == ""


def test_an_a10g_is_no_a10_and_unknown_cards_still_start(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.0.0.10\n10.0.0.11 slots=1\n10.0.0.12 slots=1\n")
    answer(answers, "10.0.0.11", 8, "NVIDIA A10G")
    answer(answers, "10.0.0.12", 8, "NVIDIA RTX 6000")
    text = run(tmp_path / "hosts", answers).stdout
    assert "hymotion-pool=a10g,ray.io/accelerator-type=A10G" in text
    assert "hymotion-pool=gpu " in text
