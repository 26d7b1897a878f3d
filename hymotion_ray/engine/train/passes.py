"""A micro-batch's forward and backward pass: as it stands, or replayed from a CUDA graph.

Knows how gradients gather and how graphs are made and kept. Does not know batches' meaning,
optimizers or schedules. A pass is thousands of short kernels, which a host starts one by one more
slowly than a fast GPU computes them; a graph starts them all at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.engine.train.parallel import Parallel
from hymotion_ray.engine.train.step_clock import StepClock

MOST_GRAPHS = 96
"""Shapes of batches that have a graph; others run as they stand. One takes about 20 MB."""


class PlainPasses:
    """The pass as it stands."""

    def __init__(self, parallel: Parallel, clock: StepClock, share: float) -> None:
        """share: what one clip's loss counts in this rank's gradient."""
        self.parallel, self.clock, self.share = parallel, clock, share
        self.trained = list(parallel.parameters.values())

    def clear(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self.trained:
            parameter.grad = None

    def __call__(self, batch: MicroBatch, *, is_last: bool) -> Tensor:
        """Add the gradients of a batch; returns its losses (B,), weighted. is_last: of a step."""
        with nullcontext() if is_last else self.parallel.no_sync():
            with self.clock.working():
                losses = self.forward(batch.inputs, batch.weight)
            self.backward(losses)
        return losses.detach()

    def forward(self, inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:
        """Losses (B,) of the network's inputs, weighted."""
        losses: Tensor = self.parallel.module(*inputs) * weight
        return losses

    def backward(self, losses: Tensor) -> None:
        """Add the gradients of losses (B,)."""
        self.parallel.backward(losses.sum() * self.share)


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    losses: Tensor


class GraphPasses:
    """The pass replayed from a graph, one for each shape of batches; on one rank.

    The first batch of a shape runs as it stands, which also compiles what there is to compile, and
    the second is recorded. Gradients stay where they are, since graphs write to fixed places.
    """

    def __init__(self, plain: PlainPasses) -> None:
        self.plain = plain
        self._met: set[tuple[torch.Size, ...]] = set()
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}
        # One pool for all graphs: they run one after the other and leave nothing to each other. The
        # passes before a recording take their memory from it too, on the same stream (a stream's
        # memory is its own), so that it is not held twice.
        self._pool = torch.cuda.MemPool()
        self._stream = torch.cuda.Stream()

    def clear(self) -> None:
        """As `PlainPasses.clear`, in place."""
        grads = [p.grad for p in self.plain.trained if p.grad is not None]
        if grads:
            torch._foreach_zero_(grads)

    def __call__(self, batch: MicroBatch, *, is_last: bool) -> Tensor:
        """As `PlainPasses`."""
        inputs = (*batch.inputs, batch.weight)
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._graphs:
            if shapes not in self._met or len(self._graphs) >= MOST_GRAPHS:
                self._met.add(shapes)
                return self._run_plain(batch, is_last)
            self._graphs[shapes] = self._record(inputs)
        recorded = self._graphs[shapes]
        for held, given in zip(recorded.inputs, inputs, strict=True):
            held.copy_(given)
        with self.plain.clock.working():
            recorded.graph.replay()
        return recorded.losses.clone()

    def _run_plain(self, batch: MicroBatch, is_last: bool) -> Tensor:
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream), torch.cuda.use_mem_pool(self._pool):
            losses = self.plain(batch, is_last=is_last)
        main.wait_stream(self._stream)
        return losses.clone()  # what lies in the pool is overwritten by the next replay

    def _record(self, inputs: tuple[Tensor, ...]) -> _Graph:
        """Record the pass, which computes nothing; its inputs are read from places of their own."""
        held = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        # Other threads, which read batches, may go on.
        pool, mode = cast("Any", self._pool.id), "thread_local"
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode=mode):
            losses = self.plain.forward(held[:-1], held[-1])
            self.plain.backward(losses)
        return _Graph(graph, held, losses.detach())


def make_passes(parallel: Parallel, clock: StepClock, share: float) -> PlainPasses | GraphPasses:
    """The passes that the switches of `parallel` want."""
    plain = PlainPasses(parallel, clock, share)
    return GraphPasses(plain) if parallel.config.cuda_graphs else plain
