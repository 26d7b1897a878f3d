"""The most memory that this process has taken so far. Loads no torch where none is loaded."""

from __future__ import annotations

import sys


def peak_bytes() -> int:
    """Bytes of torch's tensors on this process's GPU at their peak; without one, resident memory.

    CUDA's own context does not count. 0 where the system does not tell.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
