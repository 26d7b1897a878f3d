"""One sampler over several processes: this one leads, followers do the same calls beside it.

Every process holds its share of the network and samples the same rows (`hymotion_ray.model.split`),
so that they meet in collectives. The leader hands each call on before it begins itself and keeps
the result. A group is one replica: when a process of it is lost, the leader's call fails and the
whole group is given up, for its rows are in the others' hands too.

The leader runs in bundle 0 of a placement group with a bundle for every process, which whoever
starts it has made (`engine.pool`, or Serve); followers take the others.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hymotion_ray.api import Model, load_model
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.sampling import NoiseSource, Precision, SamplingConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.device import (
    cap_gpu_memory,
    device_name,
    device_of_this_process,
    set_threads,
)
from hymotion_ray.engine.mirrored_run import Change, Mirror, MirroredRun
from hymotion_ray.errors import ClusterError, HyMotionError, ReplicaLostError
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import OnStep, Sampler
from hymotion_ray.flow.stepwise import RunKind
from hymotion_ray.model.precision import device_precision, set_precision
from hymotion_ray.model.split import LayerSplit, RowSplit, Wire, balance_bytes, split_heads

_JOIN_S = 900.0
"""How long a process may load before it meets the others."""
_WINDOW_BYTES = 2**30
"""Text rows computed ahead, the same on unlike cards, so that all make the same calls."""
_OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What every process of a group is told when it joins."""

    model: str
    split: SplitConfig
    precision: Precision
    noise: NoiseSource
    grid: Grid
    host: str
    port: int
    cpu_threads: int
    fault_folder: str | None


@dataclass(frozen=True, kw_only=True)
class _Joined:
    """What a process says when it has taken its share."""

    device: str
    weight_bytes: int


class SamplerGroup:
    """What a `Sampler` is to its caller, computed by `split.size` processes."""

    def __init__(
        self,
        model: str,
        split: SplitConfig,
        *,
        precision: Precision,
        grid: Grid,
        noise: NoiseSource = "cpu",
        cpu_threads: int = 1,
        on_lost: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Start the followers in this process's placement group and load each one's share.

        `on_lost` is told when a stepwise batch has lost a process, and may end this one.

        Raises `ClusterError` where this process is in no group of `split.size` bundles, and
        `ReplicaLostError` when a follower cannot start.
        """
        self.split = split
        self.grid = grid
        self._in_float32 = False
        self._told: list[ray.ObjectRef] = []
        self._on_lost = on_lost
        self.followers = _start_followers(split)
        share = _Share(
            model=model,
            split=split,
            precision=precision,
            noise=noise,
            grid=grid,
            host=ray.util.get_node_ip_address(),
            port=_free_port(),
            cpu_threads=cpu_threads,
            fault_folder=faults.folder(),
        )
        joining = [f.join.remote(i + 1, share) for i, f in enumerate(self.followers)]
        self._member = _Member(0, share)
        joined = [self._member.joined, *self._meet(joining, _JOIN_S)]
        self.device = _device_words(split, [one.device for one in joined])
        """Devices and split in words: part of the class of a clip's bits."""
        self.weight_bytes = tuple(one.weight_bytes for one in joined)
        """Memory that the weights of each process take."""
        self.precision = str(self._member.sampler.network.dtype).removeprefix("torch.")
        self.precision_reason = self._member.precision_reason
        self.train_frames: int = self._member.sampler.network.train_frames

    def in_float32(self) -> SamplerGroup:
        """The same group, computing with a copy of its weights in fp32."""
        other = copy.copy(self)
        other._in_float32 = True
        return other

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
        """As `Sampler.sample`.

        Raises `ReplicaLostError` when a process of the group is lost, and torch's
        `OutOfMemoryError` when one of them has no memory; either ends the group.
        """
        given = context, vector, context_length, tuple(rows), sampling
        shared = ray.put(given)
        calls = [f.sample.remote(shared, self._in_float32) for f in self.followers]
        sampler = self._member.sampler_in(self._in_float32)
        try:
            latents = sampler.sample(*given, on_step=on_step, check=check)
        except torch.OutOfMemoryError:
            self.close()
            raise
        except RuntimeError as error:  # what collectives raise
            raise self._lost(calls, error) from error
        self._meet(calls, self.split.timeout_s)
        return latents

    @property
    def sampler(self) -> Sampler:
        """The leader's own sampler, for runs that all processes make (`new_run`)."""
        return self._member.sampler

    @property
    def model(self) -> Model:
        """The model, whose network is the leader's share."""
        return self._member.model

    def new_run(self, sampler: Sampler, kind: RunKind, *, full_rows: bool) -> MirroredRun:
        """A stepwise batch on all processes; `sampler` is the group's, or its float32 one."""
        return MirroredRun(
            sampler,
            kind,
            full_rows=full_rows,
            float32=sampler is not self.sampler,
            tell=self._tell,
            lost=self._lost_in_run,
        )

    def _lost_in_run(self, error: Exception) -> Exception:
        found = self._lost(self._told, error)
        self._on_lost(found)
        return found

    def _tell(self, change: Change) -> None:
        """Hand a change to the followers, which make changes in the order they are told."""
        self._told = [follower.follow.remote(change) for follower in self.followers]

    def _meet(self, calls: Sequence[ray.ObjectRef], timeout_s: float) -> list[Any]:
        """What all followers answer, once they have done what the leader did."""
        try:
            answers = ray.get(list(calls), timeout=timeout_s)
        except (RayActorError, RayTaskError, GetTimeoutError) as error:
            raise self._lost(calls, error) from error
        if _OUT_OF_MEMORY in answers:
            raise self._lost(calls, RuntimeError(_OUT_OF_MEMORY))
        return answers

    def _lost(self, calls: Sequence[ray.ObjectRef], error: Exception) -> Exception:
        """Give the group up, and say which processes are lost, as far as they tell."""
        words = []
        for rank, call in enumerate(calls, start=1):
            try:
                if ray.get(call, timeout=1.0) == _OUT_OF_MEMORY:
                    words.append(f"process {rank} is {_OUT_OF_MEMORY}")
            except RayActorError:
                words.append(f"process {rank} died")
            except GetTimeoutError:
                words.append(f"process {rank} does not answer")
            except RayTaskError as failure:
                words.append(f"process {rank} failed ({failure.cause!r:.200})")
        self.close()
        found = "; ".join(words) or f"process 0 failed ({error!r:.200})"
        if _OUT_OF_MEMORY in found:
            return torch.OutOfMemoryError(found)
        return ReplicaLostError(
            f"a sampler split over {self.split.size} processes is given up: {found}; its clips are "
            "sampled again by another"
        )

    def close(self) -> None:
        """End the followers and leave the group."""
        for follower in self.followers:
            ray.kill(follower)
        if dist.is_initialized():
            dist.destroy_process_group()


class _Member:
    """A process's share of the network, and the sampler over it."""

    def __init__(self, rank: int, share: _Share) -> None:
        """Meet the others and take the share of process `rank`."""
        device = device_of_this_process()
        if device == "cpu":
            set_threads(share.cpu_threads)
            torch.set_num_threads(share.cpu_threads)
        _join(rank, share, device)
        choice = device_precision(share.precision, torch.device(device))
        # Whole in host memory only: the card takes no more than the share, not even for a moment.
        loaded = load_model(share.model, device="cpu", dtype=choice.name)
        self.model = loaded
        network, wire = loaded.network, Wire()
        shared: Any = network
        if share.split.way == "heads":
            split_heads(network, wire)
        elif share.split.way == "rows":
            shared = RowSplit(network, wire)
        else:
            blocks_each = balance_bytes(network, wire.size)
            shared = LayerSplit(network, wire, blocks_each, share.split.num_micro_batches)
        network.to(device)
        set_precision(network, choice)
        self.precision_reason = choice.reason
        self.joined = _Joined(
            device=device_name(device),
            weight_bytes=sum(p.numel() * p.element_size() for p in network.parameters()),
        )
        self.sampler = loaded.sampler_over(shared, share.grid, share.noise, _WINDOW_BYTES)
        self._float32: Sampler | None = None

    def sampler_in(self, float32: bool) -> Sampler:
        """The sampler, or the one over a copy of the weights in fp32."""
        if not float32:
            return self.sampler
        if self._float32 is None:
            self._float32 = self.sampler.in_float32()
        return self._float32


@ray.remote
class _Follower:
    """A process that does what the leader does."""

    def join(self, rank: int, share: _Share) -> _Joined:
        cap_gpu_memory()
        faults.use(share.fault_folder)
        self._member = _Member(rank, share)
        self._mirror = Mirror(self._member.sampler_in)
        return self._member.joined

    def sample(self, given: tuple[Any, ...], float32: bool) -> str | None:
        """Do the leader's call; "out of memory" when there is none here."""

        def call() -> None:
            sampler = self._member.sampler_in(float32)
            sampler.sample(*given, on_step=lambda done, total: faults.reach("follow"), check=False)

        return self._do(call)

    def follow(self, change: Change) -> str | None:
        """Make the leader's change of a batch; "out of memory" when there is none here."""
        faults.reach("follow", change.what)
        return self._do(lambda: self._mirror.follow(change))

    def _do(self, call: Callable[[], None]) -> str | None:
        """What goes wrong here alone also ends the others' waiting."""
        try:
            call()
        except HyMotionError:  # the leader meets it too, before anything is sent
            raise
        except torch.OutOfMemoryError:
            dist.destroy_process_group()
            return _OUT_OF_MEMORY
        except Exception:
            dist.destroy_process_group()
            raise
        return None


def _start_followers(split: SplitConfig) -> list[Any]:
    """A follower in every bundle of this process's placement group but the first."""
    place = ray.util.get_current_placement_group()
    bundles = place.bundle_specs if place is not None else []
    if place is None or len(bundles) != split.size:
        raise ClusterError(
            f"a sampler split over {split.size} processes needs a placement group of as many "
            f"bundles, its own process in the first; this process's has {len(bundles)}"
        )
    return [
        _Follower.options(  # type: ignore[attr-defined]
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU") or None,
            resources={n: v for n, v in bundle.items() if n not in ("CPU", "GPU")} or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=place, placement_group_bundle_index=i
            ),
        ).remote()
        for i, bundle in enumerate(bundles)
        if i
    ]


def _join(rank: int, share: _Share, device: str) -> None:
    """Meet the other processes of the group."""
    size, timeout = share.split.size, timedelta(seconds=_JOIN_S)
    store = TCPStore(share.host, share.port, size, is_master=rank == 0, timeout=timeout)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=share.split.timeout_s),
    )


def _device_words(split: SplitConfig, devices: Sequence[str]) -> str:
    """The devices' model, each kind once, and how they divide the work."""
    return f"{' + '.join(dict.fromkeys(devices))}, {split}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
