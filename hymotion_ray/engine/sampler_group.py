"""One sampler over several processes: this one leads, followers do the same calls beside it.

Every process holds its share of the network and samples the same rows (`hymotion_ray.model.split`),
so that they meet in collectives. The leader hands each call on before it begins itself and keeps
the result. A group is one replica: when a process of it is lost, the leader's call fails and the
whole group is given up, for its rows are in the others' hands too.

Followers are placed together, on the leader's node where there is room.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hymotion_ray.api import load_model
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.engine.device import cap_gpu_memory, device_of_this_process, set_threads
from hymotion_ray.errors import ClusterError
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import OnStep, Sampler
from hymotion_ray.model.split import LayerSplit, RowSplit, Wire, balance_bytes, split_heads

_PLACE_S = 300.0
_WINDOW_BYTES = 2**30
"""Text rows computed ahead, the same on unlike cards, so that all make the same calls."""


class SamplerGroup:
    """What a `Sampler` is to its caller, computed by `split.size` processes."""

    def __init__(
        self,
        model: str,
        split: SplitConfig,
        *,
        precision: str,
        grid: Grid,
        num_gpus: float,
        num_cpus: float = 1.0,
        cpu_threads: int = 1,
    ) -> None:
        """Start and place the followers; `num_gpus` and `num_cpus` are a follower's share.

        Raises `ClusterError` where the cluster has no room for them.
        """
        self.split = split
        self.grid = grid
        bundle = {"CPU": num_cpus, **({"GPU": num_gpus} if num_gpus else {})}
        self._place = placement_group([bundle] * (split.size - 1), strategy="PACK")
        if not self._place.wait(_PLACE_S):
            remove_placement_group(self._place)
            raise ClusterError(
                f"a sampler split over {split.size} processes finds no room for {split.size - 1} "
                f"times {bundle} beside itself within {_PLACE_S:.0f} s; split it over fewer, or "
                "add nodes"
            )
        self.followers = [
            _Follower.options(  # type: ignore[attr-defined]
                num_cpus=num_cpus,
                num_gpus=num_gpus or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._place, placement_group_bundle_index=i
                ),
            ).remote()
            for i in range(split.size - 1)
        ]
        host, port = ray.util.get_node_ip_address(), _free_port()
        common = (model, split, precision, grid, host, port, cpu_threads)
        joining = [f.join.remote(i + 1, *common) for i, f in enumerate(self.followers)]
        self._sampler = _join(0, *common)
        self._meet(joining)

    def sample(
        self,
        context: Tensor,
        vector: Tensor,
        context_length: Tensor,
        rows: Sequence[Row],
        sampling: SamplingConfig,
        *,
        on_step: OnStep | None = None,
        check: bool = True,
    ) -> list[Tensor]:
        """As `Sampler.sample`; raises `ClusterError` when a process of the group is lost."""
        given = ray.put((context, vector, context_length, tuple(rows), sampling))
        calls = [follower.sample.remote(given) for follower in self.followers]
        try:
            latents = self._sampler.sample(
                context, vector, context_length, rows, sampling, on_step=on_step, check=check
            )
        except RuntimeError as error:  # what collectives raise
            raise self._lost(calls, error) from error
        self._meet(calls)
        return latents

    def _meet(self, calls: Sequence[ray.ObjectRef]) -> None:
        """Wait until all followers have done what the leader did."""
        try:
            ray.get(list(calls), timeout=self.split.timeout_s)
        except (RayActorError, RayTaskError, ray.exceptions.GetTimeoutError) as error:
            raise self._lost(calls, error) from error

    def _lost(self, calls: Sequence[ray.ObjectRef], error: Exception) -> ClusterError:
        """Say which processes are lost, as far as they tell."""
        words = []
        for rank, call in enumerate(calls, start=1):
            try:
                ray.get(call, timeout=1.0)
            except RayActorError:
                words.append(f"process {rank} died")
            except ray.exceptions.GetTimeoutError:
                words.append(f"process {rank} does not answer")
            except RayTaskError as failure:
                words.append(f"process {rank} failed ({failure.cause!r:.200})")
        self.close()
        found = "; ".join(words) or f"process 0 failed ({error!r:.200})"
        return ClusterError(
            f"a sampler split over {self.split.size} processes is given up: {found}; its clips are "
            "sampled again by another"
        )

    def close(self) -> None:
        """End the followers and leave the group."""
        for follower in self.followers:
            ray.kill(follower)
        remove_placement_group(self._place)
        if dist.is_initialized():
            dist.destroy_process_group()


@ray.remote
class _Follower:
    """A process that does what the leader does."""

    def join(self, *arguments: Any) -> None:
        cap_gpu_memory()
        self._sampler = _join(*arguments)

    def sample(self, given: tuple[Any, ...]) -> None:
        self._sampler.sample(*given, check=False)


def _join(
    rank: int,
    model: str,
    split: SplitConfig,
    precision: str,
    grid: Grid,
    host: str,
    port: int,
    cpu_threads: int,
) -> Sampler:
    """Meet the others and take this process's share of the network."""
    device = device_of_this_process()
    if device == "cpu":
        set_threads(cpu_threads)
        torch.set_num_threads(cpu_threads)
    timeout = timedelta(seconds=split.timeout_s)
    store = TCPStore(host, port, split.size, is_master=rank == 0, timeout=timeout)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=split.size,
        timeout=timeout,
    )
    loaded = load_model(model, device=device, dtype=precision)
    network, held = loaded.network, loaded.checkpoint
    shared: Any = network
    wire = Wire()
    if split.way == "heads":
        split_heads(network, wire)
    elif split.way == "rows":
        shared = RowSplit(network, wire)
    else:
        blocks_each = balance_bytes(network, split.size)
        shared = LayerSplit(network, wire, blocks_each, split.num_micro_batches)
    return Sampler(
        shared,
        null_vector=held.null_vtxt_feat,
        null_context=held.null_ctxt_input,
        train_frames=loaded.config.train_frames,
        enable_ctxt_null_feat=loaded.config.enable_ctxt_null_feat,
        grid=grid,
        text_window_bytes=_WINDOW_BYTES,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
