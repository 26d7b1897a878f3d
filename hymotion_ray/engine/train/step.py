"""One forward and backward pass: as it stands, or replayed from a CUDA graph of its shape.

Knows arithmetic, attention kernels and graphs. Does not know batches' meaning, optimizers or
schedules. A small network's step is thousands of short kernels; a graph starts them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from hymotion_ray.config.tiny_training import TrainingConfig
from hymotion_ray.engine.train.precision import attention_kernels

Step = Callable[..., Tensor]
"""Takes the model's input tensors; leaves gradients in its parameters and returns the loss."""

_WARM_UP_RUNS = 3


class EagerStep:
    """The pass as it stands."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str) -> None:
        self.model = model
        self.device_type = device.type
        self.low = precision == "bfloat16"
        self.kernels = attention_kernels(device)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Loss () fp32 of the inputs; the gradients of the pass before are gone."""
        self.model.zero_grad(set_to_none=False)
        # Without the cache of cast weights, which a graph must not keep.
        autocast = torch.autocast(
            self.device_type, torch.bfloat16, enabled=self.low, cache_enabled=False
        )
        with sdpa_kernel(self.kernels), autocast:
            loss: Tensor = self.model(*inputs).mean()
        loss.backward()
        return loss.detach()


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor


class GraphStep:
    """The pass replayed from a CUDA graph, one for each shape that it meets."""

    def __init__(self, step: EagerStep) -> None:
        self.step = step
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        """As `EagerStep`; the loss is overwritten by the next call of the same shapes."""
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(inputs)
        captured = self._graphs[shapes]
        for held, given in zip(captured.inputs, inputs, strict=True):
            held.copy_(given)
        captured.graph.replay()
        return captured.loss

    def _capture(self, inputs: tuple[Tensor, ...]) -> _Graph:
        held = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                self.step(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(*held)
        return _Graph(graph, held, loss)


def make_step(model: nn.Module, device: torch.device, config: TrainingConfig) -> Step:
    """The pass of `model` on `device` as `config` wants it."""
    step = EagerStep(model, device, config.precision)
    return GraphStep(step) if config.cuda_graphs else step
