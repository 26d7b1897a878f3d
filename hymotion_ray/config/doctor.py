"""What a cluster is checked for, and the grades it must make. Knows no ray."""

from __future__ import annotations

from dataclasses import dataclass, field

from hymotion_ray.config.fields import require


@dataclass(frozen=True, kw_only=True)
class Grades:
    """Least that a node must have; 0 asks for nothing."""

    gpus: int = 0
    """GPUs of each node with GPUs, of which there must then be one."""
    gpu_memory_gb: float = 0.0
    """Memory of each GPU."""
    memory_gb: float = 0.0
    """Main memory of each node."""
    gbit_s: float = 0.0
    """Bandwidth between each pair of nodes."""
    shm_gb: float = 1.0
    """Size of /dev/shm; Ray keeps its objects there and data loaders their batches."""
    disk_gb: float = 5.0
    """Free space of Ray's temporary folder, which objects spill to."""
    open_files: int = 8192
    """Limit of open files of a process."""
    clock_skew_s: float = 1.0
    """Largest difference of clocks: tokens, certificates and logs go by them."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value >= 0, f"grades.{name}", value, "0 or more")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """One check of a cluster."""

    address: str | None = None
    """Ray cluster; None: RAY_ADDRESS when set, else one started on this machine."""
    quick: bool = False
    """Only what each node says of itself: no pairs of nodes, no bandwidth, no all-reduce."""
    shares: tuple[str, ...] = ()
    """Folders that all nodes must share."""
    stores: tuple[str, ...] = ()
    """Object-store URLs that all nodes must write to and read from."""
    ports: tuple[int, ...] = ()
    """Further TCP ports that every node must be able to reach on every other."""
    transfer_mb: float = 64.0
    """Megabytes sent between each pair of nodes to measure bandwidth; 0: none."""
    timeout_s: float = 60.0
    """Seconds that a node has to start a process and answer."""
    collective_timeout_s: float = 30.0
    """Seconds that all processes have to meet, and to sum."""
    grades: Grades = field(default_factory=Grades)
    """Least that a node must have."""

    def __post_init__(self) -> None:
        require(self.timeout_s > 0, "timeout_s", self.timeout_s, "seconds > 0")
        require(
            self.collective_timeout_s > 0,
            "collective_timeout_s",
            self.collective_timeout_s,
            "seconds > 0",
        )
        require(0 <= self.transfer_mb <= 10_000, "transfer_mb", self.transfer_mb, "0 to 10000")
        for port in self.ports:
            require(1 <= port <= 65535, "ports", port, "1 to 65535")
