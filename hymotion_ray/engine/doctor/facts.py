"""What one node says of itself: versions, devices, memory, limits, names, clock. Ray-free.

Knows how to look; judges nothing. It runs in a process of the node that is examined.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hymotion_ray.engine.doctor.faults import fault

_PACKAGE = Path(__file__).resolve().parents[2]
_COMPARED = (
    *("ray", "torch", "numpy", "pyarrow", "safetensors", "tokenizers", "transformers", "scipy"),
    *("fastapi", "pydantic", "click", "roma", "accelerate", "peft", "uvicorn", "starlette"),
)
_COMMUNICATION = re.compile(r"(NCCL|GLOO|FI|UCX)_\w+")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its driver tells."""

    name: str
    memory_bytes: int
    has_bf16: bool
    """Whether its matrix units know bfloat16 (compute capability 8.0 and later)."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What there is on a node."""

    host: str
    ip: str
    """The address that Ray knows it by."""
    versions: Mapping[str, str]
    """python, hymotion_ray, its code's digest, and packages."""
    cuda: str | None
    """CUDA that torch was built for."""
    driver: str | None
    """NVIDIA driver."""
    gpus: Sequence[Gpu]
    num_cpus: int
    memory_bytes: int
    shm_bytes: int
    disk_free_bytes: int
    """Of Ray's temporary folder."""
    open_files: int
    """Soft limit; -1 for none."""
    clock: float
    """Seconds since 1970 when asked."""
    forward: Sequence[str]
    """Addresses that the host's name leads to; none when it leads nowhere."""
    reverse: str | None
    """Name that the address leads to."""
    interfaces: Mapping[str, int | None]
    """Network interfaces that are up, with their speed in Mbit/s where it is told."""
    interface: str | None
    """The interface that carries the node's address."""
    infiniband: Sequence[str]
    """RDMA devices."""
    communication: Mapping[str, str]
    """Environment variables of NCCL, Gloo and the like."""


def node_facts(ip: str, temp_dir: str) -> NodeFacts:
    """The facts of the node that this process runs on; ip and temp_dir are Ray's."""
    driver, gpus = _gpus()
    host = socket.gethostname()
    interfaces = _interfaces()
    return NodeFacts(
        host=host,
        ip=ip,
        versions=versions(),
        cuda=_cuda(),
        driver=driver,
        gpus=gpus,
        num_cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shm_bytes=_shm_bytes(),
        disk_free_bytes=shutil.disk_usage(temp_dir if os.path.isdir(temp_dir) else "/tmp").free,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        clock=clock(),
        forward=_forward(host),
        reverse=_reverse(ip),
        interfaces=interfaces,
        interface=_interface_of(ip, list(interfaces)),
        infiniband=_infiniband(),
        communication={k: v for k, v in os.environ.items() if _COMMUNICATION.fullmatch(k)},
    )


def clock() -> float:
    """Time of this node, seconds since 1970."""
    return time.time() + float(fault("clock_s") or 0.0)


def code_digest() -> str:
    """A name of our own code as it lies here: SHA-256 of all its Python files, 12 digits."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Of Python, our package and its code, and of the packages that nodes are compared by."""
    found = {"python": platform.python_version()}
    for name in ("hymotion-ray", *_COMPARED):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"code": code_digest()}


def _cuda() -> str | None:
    """By torch's own version, without the seconds that importing it takes."""
    torch = sys.modules.get("torch")
    if torch is not None:
        version: str | None = torch.version.cuda
        return version
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        build = importlib.metadata.version("torch").partition("+")[2]
        if match := re.fullmatch(r"cu(\d+)(\d)", build):
            return f"{match[1]}.{match[2]}"
    return None


def _gpus() -> tuple[str | None, list[Gpu]]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            name = _text(pynvml.nvmlDeviceGetName(handle))
            found.append(Gpu(name=name, memory_bytes=int(memory), has_bf16=major >= 8))
        return _text(pynvml.nvmlSystemGetDriverVersion()), found
    finally:
        pynvml.nvmlShutdown()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _shm_bytes() -> int:
    simulated = fault("shm_bytes")
    if simulated is not None:
        return int(simulated)
    return shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0


def _forward(host: str) -> list[str]:
    if fault("names"):
        return []
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})
    except OSError:
        return []


def _reverse(ip: str) -> str | None:
    if fault("names"):
        return None
    try:
        return socket.gethostbyaddr(ip)[0]
    except OSError:
        return None


def _interfaces() -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for folder in sorted(Path("/sys/class/net").glob("*")):
        with contextlib.suppress(OSError):
            if folder.name != "lo" and (folder / "operstate").read_text().strip() != "down":
                found[folder.name] = _speed(folder)
    return found


def _speed(folder: Path) -> int | None:
    try:
        speed = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def _interface_of(ip: str, names: Sequence[str]) -> str | None:
    """By asking each interface for its address (SIOCGIFADDR of netdevice(7))."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in names:
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == ip:
                    return name
    return None


def _infiniband() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
