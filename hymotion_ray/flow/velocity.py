"""The guided velocity of a batch, replayed from a CUDA graph where the network allows it.

Exact guidance computes both branches in one call. Where a mode leaves the null branch out at times,
each branch is a call of the unguided shape, so that a row's bits do not depend on whether the
others of its batch need theirs; both are replays of one graph.

A replay launches a whole step at once and reads nothing back, so that the host is never what a step
waits for. Graphs are kept by shape and by where the text rows lie; all share one pool of memory,
since they run one after another. A graph whose text rows are gone is never replayed: its key names
their address and shape, and who has the same is as good.

Shapes: B rows, L frames.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hymotion_ray.flow.guidance import guidance_direction, guide, guide_apart
from hymotion_ray.flow.network import Network, TextRows
from hymotion_ray.flow.solvers import NullUse

MAX_GRAPHS = 48
"""Seven numbers of rows of 64 and below, for several lengths; what they compute in is shared."""
_WARM_UPS = 2


@dataclass
class _Graph:
    """A captured call, and the memory that it reads and writes."""

    graph: Any
    x: Tensor
    index: Tensor
    layout: Any
    scale: Tensor | None
    out: Tensor
    last: tuple[Any, Any] = (None, None)
    """Layout and scale as given last, which need no copy the next time."""


class GuidedVelocity:
    """Computes guided velocities with one network. Not for several threads at once."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._pool: Any = None

    def __call__(
        self, x_BLF: Tensor, rows: TextRows, index: Tensor, layout: Any, scale: Tensor | None
    ) -> Tensor:
        """(B, L, 201) fp32, its own memory.

        `index` (B,), or (2B,) with the null branch after, says which of `rows` each motion row
        attends to; `layout` is of as many; `scale` (B, 1, 1) fp32, None without guidance.
        """
        if not getattr(self.network, "replays", False):
            return self._compute(x_BLF, rows, index, layout, scale)
        key = (tuple(x_BLF.shape), rows.key, scale is None)
        held = self._graphs.get(key)
        if held is None:
            held = self._graphs[key] = self._capture(x_BLF, rows, index, layout, scale)
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        held.x.copy_(x_BLF)
        held.index.copy_(index)
        if held.last[0] is not layout:
            held.layout.copy_(layout)
        if held.scale is not None and scale is not None and held.last[1] is not scale:
            held.scale.copy_(scale)
        held.last = (layout, scale)
        held.graph.replay()
        return held.out.clone()

    def apart(
        self,
        x_BLF: Tensor,
        rows: TextRows,
        index: Tensor,
        layout: Any,
        scale: Tensor,
        uses_B: Sequence[NullUse],
        kept: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The guided velocity and the direction of guidance, (B, L, 201) fp32 each.

        `index` (2B,) as above, or (B,) where no row's use is new; `layout` is of B rows; `kept` is
        the direction returned the last time.
        """
        num_rows = len(x_BLF)
        v_text = self(x_BLF, rows, index[:num_rows], layout, None)
        new = None
        if "new" in uses_B:
            new = v_text - self(x_BLF, rows, index[num_rows:], layout, None)
        direction = guidance_direction(uses_B, new, kept, v_text)
        return guide_apart(v_text, direction, scale), direction

    def _compute(
        self, x_BLF: Tensor, rows: TextRows, index: Tensor, layout: Any, scale: Tensor | None
    ) -> Tensor:
        x = x_BLF if scale is None else x_BLF.repeat(2, 1, 1)
        v = self.network.motion_stream(x, rows.pick(index), layout).float()
        return v if scale is None else guide(v, scale)

    def _capture(
        self, x_BLF: Tensor, rows: TextRows, index: Tensor, layout: Any, scale: Tensor | None
    ) -> _Graph:
        own = x_BLF.clone(), index.clone(), layout.clone(), None if scale is None else scale.clone()
        stream = torch.cuda.Stream(x_BLF.device)
        stream.wait_stream(torch.cuda.current_stream(x_BLF.device))
        with torch.cuda.stream(stream):
            # Kernels compile and libraries take their workspace outside of the capture.
            for _ in range(_WARM_UPS):
                self._compute(own[0], rows, *own[1:])
        torch.cuda.current_stream(x_BLF.device).wait_stream(stream)
        # While a graph is captured nothing can be handed back: what the warm-up leaves in the
        # allocator would stand beside the graph's own memory, and does not fit on small cards.
        torch.cuda.synchronize(x_BLF.device)
        torch.cuda.empty_cache()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may copy and allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = self._compute(own[0], rows, *own[1:])
        return _Graph(graph, *own, out)
