"""Peak memory of a piece of work, on a GPU by torch's allocator and NVML, on CPU by live tensors.

Knows nothing of what is measured. Used by `bench_memory.py`.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of every storage that operations make while it is on, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and note what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen or storage.nbytes() == 0:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class Meter:
    """Bytes that torch and CUDA take of a device while work runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_gpu = device.type == "cuda"
        self.used_before = self._device_used()
        self._live = LiveTensors()

    def start(self) -> None:
        """Forget earlier peaks, and give back what torch keeps for later."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        else:
            self._live = LiveTensors()

    def watch(self) -> AbstractContextManager[Any]:
        """Within it CPU tensors are counted; on a GPU torch counts all the time."""
        return nullcontext() if self.is_gpu else self._live

    def held(self) -> int:
        """Bytes of tensors that live now."""
        return torch.cuda.memory_allocated() if self.is_gpu else self._live.now

    def wait(self) -> None:
        """Until the device has done all that was asked."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def read(self) -> dict[str, int]:
        """Peaks since `start`; what is used of the device and, less torch's part, the context.

        `kept_reserved` is what torch cannot give back: living tensors and the pools of graphs.
        """
        if not self.is_gpu:
            return {"peak_allocated": self._live.peak, "kept_reserved": self._live.now}
        found = {
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        }
        used = self._device_used()
        found["device_used"] = used
        found["context"] = max(0, used - self.used_before - torch.cuda.memory_reserved())
        torch.cuda.empty_cache()
        found["kept_reserved"] = torch.cuda.memory_reserved()
        return found

    def _device_used(self) -> int:
        """Bytes used of the whole card, as NVML says; before CUDA starts that is others' part."""
        if not self.is_gpu:
            return 0
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self.device.index or 0)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except (ImportError, OSError, AttributeError) as error:
            return self._used_by_cuda(error)
        except Exception as error:  # noqa: BLE001 - NVML's own errors, where it is installed
            return self._used_by_cuda(error)

    def _used_by_cuda(self, error: Exception) -> int:
        del error
        if not torch.cuda.is_initialized():
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free
