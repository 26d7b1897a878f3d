"""The Slurm script, run whole: with stand-ins for srun and scontrol, all nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "cluster" / "slurm.sh"
SRUN = """#!/bin/bash
# Runs here what Slurm would run on a node; its own options go first.
asked="$*"
while [[ "$1" == -* ]]; do [ "$1" = -w ] && shift; shift; done
echo "srun $asked" >> "$SRUN_LOG"
# The second node is this machine too: its agent's ports must be others.
arguments=()
for each in "$@"; do
  if [[ "$asked" == *--exclude=* && "$each" =~ ^(--.*-port)=([0-9]+)$ ]]; then
    each="${BASH_REMATCH[1]}=$((BASH_REMATCH[2] + 5))"
  fi
  arguments+=("$each")
done
exec "${arguments[@]}"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of one node."""
    programs = {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho localhost\n",
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    path = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "SLURM_JOB_ID": str(os.getpid() % 390),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": "1",
        "TMPDIR": os.environ["RAY_TMPDIR"],
        "SRUN_LOG": str(tmp_path / "srun.log"),
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    }


def test_without_a_command_it_says_so(slurm: dict[str, str]) -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, env=slurm)
    assert done.returncode == 2
    assert "give the command" in done.stderr


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("code", [0, 3])
def test_a_command_runs_on_the_jobs_own_ray(
    slurm: dict[str, str], tmp_path: Path, code: int
) -> None:
    program = (
        "import os, sys, ray; ray.init(logging_level='error');"
        "print('CPUs', ray.cluster_resources()['CPU'], os.environ['RAY_ADDRESS']);"
        f"sys.exit({code})"
    )
    done = subprocess.run(
        [str(SCRIPT), sys.executable, "-c", program],
        capture_output=True, text=True, env=slurm, timeout=600,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "1 of 1 nodes" in done.stdout
    assert "CPUs" in done.stdout
    # The token is in no command line, and nothing of the job is left.
    log = (tmp_path / "srun.log").read_text()
    assert "ray start --head" in log
    assert "TOKEN" not in log.upper()
    assert_nothing_is_left(slurm)


@pytest.mark.slow
@pytest.mark.ray
def test_two_nodes_meet_and_hold_their_gpus_and_slots(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text("#!/bin/sh\necho node-1\necho node-2\n")
    slurm |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "2", "SLOTS_A_GPU": "2"}
    program = (
        "import ray; ray.init(logging_level='error'); held = ray.cluster_resources();"
        "print(len(ray.nodes()), held['GPU'], held['sampler_slot'])"
    )
    done = subprocess.run(
        [str(SCRIPT), sys.executable, "-c", program],
        capture_output=True, text=True, env=slurm, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 nodes" in done.stdout
    assert "2 4.0 8.0" in done.stdout
    head, workers = (
        line for line in (tmp_path / "srun.log").read_text().splitlines() if "ray start" in line
    )
    assert "-w node-1" in head
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --exclude=node-1" in workers
    assert_nothing_is_left(slurm)


@pytest.mark.slow
@pytest.mark.ray
def test_slurms_warning_reaches_the_command_and_its_end_is_waited_for(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    command = (
        f"trap 'sleep 3; echo in order; exit 130' TERM; touch {tmp_path}/at-work;"
        " while true; do sleep 0.1; done"
    )
    with subprocess.Popen(
        [str(SCRIPT), "bash", "-c", command], stdout=subprocess.PIPE, text=True, env=slurm
    ) as job:
        while not (tmp_path / "at-work").exists():
            assert job.poll() is None, "no Ray, no command"
            time.sleep(0.1)
        job.terminate()
        said, _ = job.communicate(timeout=300)
    assert said.endswith("in order\n")
    assert job.returncode == 130
    assert_nothing_is_left(slurm)


def assert_nothing_is_left(slurm: dict[str, str]) -> None:
    temp = f"{slurm['TMPDIR']}/r{slurm['SLURM_JOB_ID']}"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert temp not in listed
