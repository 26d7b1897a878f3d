"""Layer offload: blocks' weights wait in host memory, and come to the device one block ahead.

For cards that the whole network does not fit. The device holds what comes before and after the
blocks, and two slots of the largest block's size: while one block computes, the next one's weights
are copied into the other slot on a stream of its own. Bits are those of the resident network, for
the same kernels see the same numbers. On a CPU the slots are plain memory and copies are in turn.

Knows the network's halves and nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from hymotion_ray.model.attention import text_mask
from hymotion_ray.model.blocks import DoubleBlock, SingleBlock
from hymotion_ray.model.mmdit import MotionMMDiT, run_motion, run_text
from hymotion_ray.model.split.shared import SharedNetwork
from hymotion_ray.model.streams import MotionLayout, TextStream

_ALIGNMENT = 512
"""Bytes that tensors begin at, as torch's own allocators have them: products depend on it."""


class LayerOffload(SharedNetwork):
    """A network with its blocks' weights in host memory; what a sampler asks of a network."""

    def __init__(self, network: MotionMMDiT, device: torch.device | str) -> None:
        """`network` is whole and on the CPU, and is changed: its weights are moved."""
        super().__init__(network)
        self.blocks = network.blocks
        place = torch.device(device)
        self._host = [_HostBlock(block, pin=place.type == "cuda") for block in self.blocks]
        size = max(block.num_bytes for block in self._host)
        slots = [torch.empty(size, dtype=torch.uint8, device=place) for _ in range(2)]
        self._bound = [[block.in_slot(slot) for slot in slots] for block in self._host]
        network.to(place)  # the blocks hold no parameters any more
        rest = sum(p.numel() * p.element_size() for p in network.parameters())
        self.resident_bytes = rest + 2 * size
        """Memory that weights take on the device: two slots, and what is no block."""
        self._slots = [_Slot(slot) for slot in slots]
        self._stream: Any = torch.cuda.Stream(place) if place.type == "cuda" else None

    def whole(self) -> MotionMMDiT:
        """A copy of the network on the CPU, all its weights in it."""
        network = self.network
        with torch.device("meta"):
            copy = MotionMMDiT(network.config, network.train_frames)
        weights = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
        names = {id(module): name for name, module in network.named_modules()}
        for host in self._host:
            weights |= {
                f"{names[id(module)]}.{name}": tensor.clone()
                for module, name, tensor in host.tensors
            }
        copy.load_state_dict(weights, strict=True, assign=True)
        return copy.requires_grad_(False).eval()

    def __deepcopy__(self, _: dict[int, Any]) -> LayerOffload:
        """Another one of the same weights, with slots of its own."""
        return LayerOffload(self.whole(), self.device)

    def to(self, dtype: torch.dtype) -> Self:
        """One with its weights in `dtype`."""
        return self if dtype == self.dtype else type(self)(self.whole().to(dtype), self.device)

    def text_stream(
        self, context: Tensor, vector: Tensor, t: Tensor, context_length: Tensor
    ) -> TextStream:
        """The text half; every call takes each block's weights across once."""
        network, num_tokens = self.network, context.shape[1]
        x_TND, silu_a_T1D, silu_time_T1D = network.embed_text(context, vector, t, context_length)
        mask = text_mask(context_length, num_tokens, self.dtype)
        rope = network.text_rope(num_tokens)
        keys, values, modulations = [], [], []
        for i, block in self._visit():
            is_end = i == len(self.blocks) - 1
            x_TND, k, v, modulation = run_text(
                [block], x_TND, silu_a_T1D, mask, rope, is_end=is_end
            )
            keys += k
            values += v
            modulations += modulation
        modulations += network.end_modulations(silu_a_T1D, silu_time_T1D)
        return TextStream(
            torch.stack(keys, 1), torch.stack(values, 1), torch.cat(modulations, dim=-1)
        )

    def motion_stream(self, x: Tensor, text: TextStream, layout: MotionLayout) -> Tensor:
        """Velocity (B, L, 201); every call takes each block's weights across once."""
        network = self.network
        modulations = text.modulation.split(network.modulation_widths(), dim=-1)
        embedded_BLD = h_BLD = network.embed_motion(x)
        for i, block in self._visit():
            own = TextStream(text.keys[:, i : i + 1], text.values[:, i : i + 1], text.modulation)
            h_BLD = run_motion([block], h_BLD, [modulations[i]], own, layout)
        return network.finish_motion(h_BLD, embedded_BLD, modulations[len(self.blocks) :])

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> TextStream:
        """Unwritten memory for text rows."""
        return self.network.empty_text_rows(num_rows, num_tokens)

    def _visit(self) -> Iterator[tuple[int, DoubleBlock | SingleBlock]]:
        """Every block in order, its weights on the device, the next one's under way.

        The first block follows the last: the next call, of whichever half, begins with it.
        """
        for i, block in enumerate(self.blocks):
            here = next((s for s, slot in enumerate(self._slots) if slot.block == i), None)
            if here is None:
                here = 0
                self._bring(i, here)
            following = (i + 1) % len(self.blocks)
            if following != i:
                self._bring(following, 1 - here)
            slot = self._slots[here]
            if slot.arrived is not None:
                slot.arrived.wait()
            for module, name, tensor in self._bound[i][here]:
                module._parameters[name] = tensor  # type: ignore[assignment]
            try:
                yield i, block
            finally:
                if self._stream is not None:
                    slot.left = torch.cuda.current_stream(self.device).record_event()

    def _bring(self, i: int, place: int) -> None:
        """Start to copy block i's weights into a slot, once what computes there has ended."""
        slot, memory = self._slots[place], self._host[i].memory
        if slot.block == i:
            return
        slot.block = i
        if self._stream is None:
            slot.memory[: len(memory)].copy_(memory)
            return
        with torch.cuda.stream(self._stream):
            if slot.left is not None:
                slot.left.wait()
            slot.memory[: len(memory)].copy_(memory, non_blocking=True)
            slot.arrived = self._stream.record_event()


class _HostBlock:
    """The weights of one block in one piece of host memory."""

    def __init__(self, block: nn.Module, *, pin: bool) -> None:
        """Take the parameters out of `block`."""
        found = [
            (module, name, parameter.detach())
            for module in block.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._starts, at = [], 0
        for _, _, tensor in found:
            self._starts.append(at)
            at += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = at
        self.memory = torch.empty(at, dtype=torch.uint8, pin_memory=pin)
        self.tensors = [
            (module, name, _view(self.memory, start, tensor).copy_(tensor))
            for start, (module, name, tensor) in zip(self._starts, found, strict=True)
        ]
        for module, name, _ in found:
            module._parameters[name] = None

    def in_slot(self, slot: Tensor) -> list[tuple[nn.Module, str, Tensor]]:
        """Where each parameter will lie in a slot: module, name, tensor."""
        return [
            (module, name, _view(slot, start, tensor))
            for start, (module, name, tensor) in zip(self._starts, self.tensors, strict=True)
        ]


class _Slot:
    """Device memory for one block's weights, and who is at it."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.block: int | None = None
        """The block whose weights are there, or on their way there."""
        self.arrived: Any = None
        """Event after which they are there; None on a CPU."""
        self.left: Any = None
        """Event after which the block that computed there last has ended."""


def _view(memory: Tensor, start: int, like: Tensor) -> Tensor:
    """`like`'s shape and dtype, at byte `start` of `memory`."""
    size = like.numel() * like.element_size()
    return memory[start : start + size].view(like.dtype).view(like.shape)
