"""The device that Ray gave this process: which, what model, how much of it, and the cap on that.

Several processes share a GPU by fractions that Ray only counts. The cap makes torch's allocator
keep to them, so that one process running out of memory does not take its neighbour with it.
torch is imported where there is a GPU or a need, so that a process without either starts quickly.
"""

from __future__ import annotations

import gc
import os
import platform
import sys

import ray

SLOT = "sampler_slot"
"""Resource of nodes that say themselves how many samplers they hold, GPU fractions aside."""
_CONTEXT_BYTES = 600 * 2**20
"""GPU memory that a process takes outside of the allocator, for the CUDA context and libraries."""


def share_of_gpu() -> float:
    """The share of one GPU that is this process's: 0 without a GPU, at most 1.

    On a node with sampler slots the slots divide its GPUs; else Ray's fraction counts.
    """
    context = ray.get_runtime_context()
    assigned = context.get_assigned_resources()
    if not ray.get_gpu_ids():
        return 0.0
    if assigned.get(SLOT):
        node = next(n for n in ray.nodes() if n["NodeID"] == context.get_node_id())
        share = node["Resources"].get("GPU", 0.0) / node["Resources"][SLOT] * assigned[SLOT]
    else:
        share = assigned.get("GPU", 0.0)
    return float(min(1.0, share))


def cap_gpu_memory() -> None:
    """Hold this process's torch allocator to its share of the GPU; nothing without CUDA."""
    share = share_of_gpu()
    if not 0 < share < 1:
        return
    import torch

    if not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = max(0.05, share - _CONTEXT_BYTES / total)
    torch.cuda.set_per_process_memory_fraction(fraction)


def torch_memory() -> tuple[int, int]:
    """Bytes (allocated, reserved) by torch on this process's GPU; zeros without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0, 0
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def device_bytes() -> int:
    """Memory of this process's GPU that is its share; 0 without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    share = share_of_gpu()
    return int((share or 1.0) * torch.cuda.get_device_properties(0).total_memory)


def release_memory() -> None:
    """Give back what torch keeps of memory that nobody uses any more."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def set_threads(num_threads: int) -> None:
    """Use `num_threads` CPU threads in this process, whatever the machine has."""
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)


def device_of_this_process() -> str:
    """`cuda` when Ray gave this process a GPU that torch can use, else `cpu`."""
    # Asked without a Ray, get_gpu_ids would start one.
    if not ray.is_initialized() or not ray.get_gpu_ids():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """The GPU's or the processor's model, for manifests: part of the class of a clip's bits."""
    if device != "cuda":
        return cpu_model()
    import torch

    return torch.cuda.get_device_name()


def cpu_model() -> str:
    """The processor's model name, or its architecture where none is told."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
