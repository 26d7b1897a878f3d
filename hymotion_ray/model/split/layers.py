"""Layers parallel: every process holds some of the blocks, and batches pass through in pieces.

A batch is cut into micro-batches; while one process computes the second, the next is at the first.
The bubble, the share of time in which processes wait, is (S - 1) / (M + S - 1) for S processes and
M micro-batches of equal cost (Huang et al., GPipe (2019), section 2.3).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hymotion_ray.config.fields import require
from hymotion_ray.model.attention import text_mask
from hymotion_ray.model.mmdit import MotionMMDiT, run_motion, run_text
from hymotion_ray.model.split.shared import SharedNetwork
from hymotion_ray.model.split.wire import Wire
from hymotion_ray.model.streams import MotionLayout, TextStream

_NOTED_PIECES = 10_000


def balance(costs: Sequence[float], num_parts: int, first_cost: float = 0.0) -> list[int]:
    """How many of the blocks each process takes, so that the dearest share is cheapest.

    `costs` of the blocks in order, as measured or counted (time or memory); `first_cost` comes on
    top for the first process, which also embeds. Every process takes at least one block.
    """
    require(1 <= num_parts <= len(costs), "processes", num_parts, f"1 to {len(costs)}, the blocks")
    best: list[list[tuple[float, list[int]] | None]] = [[None] * (len(costs) + 1)]
    best[0][0] = (0.0, [])
    for part in range(num_parts):
        row: list[tuple[float, list[int]] | None] = [None] * (len(costs) + 1)
        for end in range(part + 1, len(costs) + 1):
            for start in range(part, end):
                before = best[part][start]
                if before is None:
                    continue
                share = sum(costs[start:end]) + (first_cost if part == 0 else 0.0)
                found = (max(before[0], share), [*before[1], end - start])
                current = row[end]
                if current is None or found[0] < current[0]:
                    row[end] = found
        best.append(row)
    chosen = best[num_parts][len(costs)]
    assert chosen is not None
    return chosen[1]


def balance_bytes(network: MotionMMDiT, num_parts: int) -> list[int]:
    """`balance` by the memory of the weights; the first process embeds the text besides."""
    costs = [float(_num_bytes(block)) for block in network.blocks]
    first = _num_bytes(network.text_refiner) + _num_bytes(network.ctxt_encoder)
    return balance(costs, num_parts, float(first))


def _num_bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


class LayerSplit(SharedNetwork):
    """A network whose blocks are shared out; what a sampler asks of a network."""

    def __init__(
        self, network: MotionMMDiT, wire: Wire, blocks_each: Sequence[int], num_micro_batches: int
    ) -> None:
        """`blocks_each` says how many blocks each process takes, in order (see `balance`).

        The network must be whole, with the same weights on all processes; what other processes
        compute is dropped from it. Raises `ConfigError` where the numbers do not fit.
        """
        num_blocks = len(network.blocks)
        require(
            len(blocks_each) == wire.size and sum(blocks_each) == num_blocks
            and min(blocks_each) >= 1,
            "blocks_each", list(blocks_each),
            f"{wire.size} numbers above 0 that sum to {num_blocks}",
        )  # fmt: skip
        require(num_micro_batches >= 1, "num_micro_batches", num_micro_batches, "at least 1")
        super().__init__(network)
        self.wire = wire
        self.num_micro_batches = num_micro_batches
        self.first = sum(blocks_each[: wire.rank])
        self.blocks = network.blocks[self.first : self.first + blocks_each[wire.rank]]
        self.busy: list[tuple[float, float]] = []
        """When this process computed, as (start, end) of a monotonic clock shared by a host; the
        first pieces only."""
        _drop_others(network, set(self.blocks), keep_text=wire.rank == 0)

    @property
    def bubble(self) -> float:
        """Share of a batch's time in which a process waits, were all shares of one cost."""
        return (self.wire.size - 1) / (self.num_micro_batches + self.wire.size - 1)

    @property
    def _is_first(self) -> bool:
        return self.wire.rank == 0

    @property
    def _is_last(self) -> bool:
        return self.wire.rank == self.wire.size - 1

    def text_stream(
        self, context: Tensor, vector: Tensor, t: Tensor, context_length: Tensor
    ) -> TextStream:
        """Keys, values and modulations of this process's own blocks, and of the network's end."""
        network, num_tokens = self.network, context.shape[1]
        if self._is_first:
            x_TND, silu_a_T1D, silu_time_T1D = network.embed_text(
                context, vector, t, context_length
            )
        else:
            silu_a_T1D, silu_time_T1D = network.adapter(vector, t)
            like = silu_a_T1D.new_empty(len(t), num_tokens, network.config.feat_dim)
            x_TND = self.wire.receive(like, self.wire.rank - 1)
        x_TND, keys, values, modulations = run_text(
            self.blocks,
            x_TND,
            silu_a_T1D,
            text_mask(context_length, num_tokens, self.dtype),
            network.text_rope(num_tokens),
            is_end=self._is_last,
        )
        if not self._is_last:
            self.wire.send(x_TND, self.wire.rank + 1)()
        modulations += network.end_modulations(silu_a_T1D, silu_time_T1D)
        return TextStream(
            torch.stack(keys, 1), torch.stack(values, 1), torch.cat(modulations, dim=-1)
        )

    def _widths(self) -> list[int]:
        """Widths of the modulations that this process keeps, in order."""
        widths, num_blocks = self.network.modulation_widths(), self.network.config.num_layers
        own = widths[self.first : self.first + len(self.blocks)]
        return [*own, *widths[num_blocks:]]

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> TextStream:
        """Unwritten memory for text rows of this process's own blocks."""
        config = self.network.config
        shape = (num_rows, len(self.blocks), num_tokens, config.num_heads, config.head_dim)
        weight = self.network.input_encoder.weight
        return TextStream(
            weight.new_empty(shape),
            weight.new_empty(shape),
            weight.new_empty(num_rows, 1, sum(self._widths())),
        )

    def motion_stream(self, x: Tensor, text: TextStream, layout: MotionLayout) -> Tensor:
        """Velocity (B, L, 201) of the whole batch, on all processes.

        The batch is cut into `num_micro_batches` pieces (fewer where it has fewer rows).
        """
        modulations = text.modulation.split(self._widths(), dim=-1)
        pieces = torch.arange(len(x)).chunk(self.num_micro_batches)
        velocities, sent = [], []
        for piece in pieces:
            rows = slice(int(piece[0]), int(piece[-1]) + 1)
            embedded_BLD = self.network.embed_motion(x[rows])
            h_BLD = embedded_BLD
            if not self._is_first:
                h_BLD = self.wire.receive(embedded_BLD, self.wire.rank - 1)
            start = time.perf_counter()
            own = [m[rows] for m in modulations]
            h_BLD = run_motion(
                self.blocks,
                h_BLD,
                own[: len(self.blocks)],
                TextStream(text.keys[rows], text.values[rows], text.modulation[rows]),
                MotionLayout(layout.mask[rows], layout.rope),
            )
            if self._is_last:
                velocities.append(
                    self.network.finish_motion(h_BLD, embedded_BLD, own[len(self.blocks) :])
                )
            if len(self.busy) < _NOTED_PIECES:
                self.busy.append((start, time.perf_counter()))
            if not self._is_last:
                sent.append(self.wire.send(h_BLD, self.wire.rank + 1))
        for wait in sent:
            wait()
        v = torch.cat(velocities) if self._is_last else torch.empty_like(x, dtype=self.dtype)
        return self.wire.spread(v, self.wire.size - 1)


def _drop_others(network: MotionMMDiT, own: set[nn.Module], *, keep_text: bool) -> None:
    """Free the weights of blocks that other processes compute, and of the text's start."""
    for name in ("double_blocks", "single_blocks"):
        kept = [block for block in getattr(network, name) if block in own]
        network._modules[name] = nn.ModuleList(kept)
    if not keep_text:
        network._modules["text_refiner"] = nn.Identity()
        network._modules["ctxt_encoder"] = nn.Identity()
