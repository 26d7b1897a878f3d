"""A launcher file for machines of your own, from a list of them.

    python cluster/onprem.py hosts.txt --image REGISTRY/hymotion-ray:0.1.0-cuda > cluster.yaml
    ray up cluster.yaml

A line of the list is `ADDRESS slots=N [kind=A10] [cpus=N]`, as other launchers have it: slots are
GPUs. The first machine is the head. Each is asked by SSH what it has; a difference to the list is
an error that names the machine; --no-check writes the file from the list alone. Ray's launcher
knows one kind of node for machines of your own, so that each one's labels, GPUs and sampler slots
stand in the start command, by its address. Needs ssh and PyYAML; changes nothing on the machines.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

SLOTS_A_GPU = {"A10": 1, "A10G": 1, "L4": 1, "T4": 1}
"""Samplers of a render job that a card holds; larger cards hold 2."""
KNOWN = re.compile(r"(A100|A10G|A10|H100|H200|L40S|L40|L4|V100|T4|B200)\b")
PROBE = (
    "nproc; nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; "
    "echo end; docker --version"
)


class HostError(Exception):
    """Something about the machines or their list that the user must settle."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine."""

    address: str
    num_gpus: int = 0
    kind: str = ""
    """Its GPUs' kind, as Ray names it."""
    num_cpus: int | None = None

    @property
    def start_flags(self) -> list[str]:
        """What `ray start` is told of it."""
        labels = {"hymotion-pool": self.kind.lower() or ("gpu" if self.num_gpus else "cpu")}
        if self.kind:
            labels["ray.io/accelerator-type"] = self.kind
        flags = [f"--num-gpus={self.num_gpus}"]
        flags.append("--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
        if self.num_cpus is not None:
            flags.append(f"--num-cpus={self.num_cpus}")
        if self.num_gpus:
            slots = self.num_gpus * SLOTS_A_GPU.get(self.kind, 2)
            flags.append("--resources=" + json.dumps({"sampler_slot": slots}))
        return flags


def read_hosts(text: str) -> list[Host]:
    """The machines of a list; `HostError` names the line at fault."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        address, *pairs = words
        values = dict(pair.partition("=")[::2] for pair in pairs)
        unknown = set(values) - {"slots", "kind", "cpus"}
        numbers = [values.get("slots", "0"), values.get("cpus", "1")]
        if unknown or not all(re.fullmatch(r"\d+", value) for value in numbers):
            raise HostError(
                f"line {number} is {line.strip()!r}; allowed: ADDRESS slots=N [kind=A10] [cpus=N]"
            )
        if address in [host.address for host in hosts]:
            raise HostError(f"line {number}: {address} is there twice")
        cpus = int(values["cpus"]) if "cpus" in values else None
        kind = values.get("kind", "").upper()
        hosts.append(Host(address=address, num_gpus=int(numbers[0]), kind=kind, num_cpus=cpus))
    if len(hosts) < 2:
        raise HostError(f"the list has {len(hosts)} machines; at least a head and one worker")
    return hosts


def check(host: Host, user: str, key: str | None) -> Host:
    """Ask a machine what it has; the host with its kind of GPU. `HostError` on a difference."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    command += [*(["-i", key] if key else []), f"{user}@{host.address}", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 255:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise HostError(
            f"{host.address}: no SSH as {user} without a password ({reason}); try"
            f" `ssh-copy-id {user}@{host.address}`"
        )
    if done.returncode:
        raise HostError(f"{host.address}: Docker does not run there; install it, or check PATH")
    listed, _, _ = done.stdout.partition("end")
    num_cpus, *names = listed.split("\n")
    found = [match[1] for name in names if (match := KNOWN.search(name))]
    gpus = [name for name in names if name.strip()]
    if len(gpus) != host.num_gpus:
        raise HostError(
            f"{host.address}: the list says slots={host.num_gpus}, nvidia-smi shows {len(gpus)}"
            f" ({', '.join(gpus) or 'none'})"
        )
    kind = found[0] if found else host.kind
    if host.kind and kind != host.kind:
        raise HostError(f"{host.address}: the list says kind={host.kind}, its GPUs are {kind}")
    return replace(host, kind=kind, num_cpus=host.num_cpus or int(num_cpus))


def launcher(hosts: list[Host], *, image: str, user: str, key: str | None, share: str) -> Any:
    """The launcher file, as a mapping."""
    head, *workers = hosts
    starts = " ".join(
        f"*' {host.address} '*) ray start --address=$RAY_HEAD_IP:6379"
        f" {shlex.join(host.start_flags)};;"
        for host in workers
    )
    shared = "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0; ulimit -n 65536;"
    return {
        "cluster_name": "hymotion",
        "max_workers": len(workers),
        "provider": {
            "type": "local",
            "head_ip": head.address,
            "worker_ips": [host.address for host in workers],
        },
        "auth": {"ssh_user": user, **({"ssh_private_key": key} if key else {})},
        "docker": {
            "image": image,
            "container_name": "hymotion",
            "pull_before_run": True,
            "run_options": [
                "--ulimit nofile=65536:65536",
                "--ulimit memlock=-1",
                f"-v {share}:/shared",
            ],
        },
        "file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"},
        "setup_commands": [],
        "head_start_ray_commands": [
            "ray stop",
            f"{shared} ray start --head --port=6379 --dashboard-host=127.0.0.1 --num-cpus=0"
            " --num-gpus=0 --autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": [
            "ray stop",
            f'{shared} case " $(hostname -I) " in {starts}'
            ' *) echo "this machine is not in the list" >&2; exit 1;; esac',
        ],
    }


def main() -> None:
    """Read the list, ask the machines, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("hosts", type=Path, help="file with a line for each machine")
    parser.add_argument("--image", required=True, help="the CUDA image, with tag or digest")
    parser.add_argument("--user", default="ubuntu", help="user to log in as")
    parser.add_argument("--key", help="file of the SSH key; without: ssh's own")
    parser.add_argument("--share", default="/shared", help="folder that all machines mount")
    parser.add_argument("--no-check", action="store_true", help="do not ask the machines")
    given = parser.parse_args()
    try:
        hosts = read_hosts(given.hosts.read_text(encoding="utf-8"))
        if not given.no_check:
            with ThreadPoolExecutor(16) as pool:
                hosts = list(pool.map(lambda host: check(host, given.user, given.key), hosts))
    except (HostError, OSError) as error:
        sys.exit(f"Error: {error}")
    config = launcher(hosts, image=given.image, user=given.user, key=given.key, share=given.share)
    sys.stdout.write(f"# Made by cluster/onprem.py from {given.hosts.name}.\n")
    yaml.safe_dump(config, sys.stdout, sort_keys=False, width=10_000)


if __name__ == "__main__":
    main()
