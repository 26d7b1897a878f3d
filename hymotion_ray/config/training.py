"""What a training run is: data, objective, optimizer, checkpoints, workers. Knows no tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hymotion_ray.config.fields import require
from hymotion_ray.config.model import ModelConfig, TextConfig
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.config.text import TextPlacement

TRAIN_SCHEMA_VERSION = 1
MIN_FRAMES = 20


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is learned: flow matching, with the condition dropped now and then."""

    timestep: Literal["uniform", "logit_normal"] = "uniform"
    """How t in [0, 1] is drawn; logit_normal looks more often at the middle of the path."""
    logit_mean: float = 0.0
    """Mean of logit(t) with logit_normal."""
    logit_std: float = 1.0
    """Deviation of logit(t) with logit_normal."""
    text_noise: float = 0.0
    """Noise added to text features, as a share of their size, so that near words act alike."""
    ignore_constant: bool = False
    """Whether features that never move (deviation below 1e-3) cost nothing: a narrow network then
    need not carry their noise through. False: all 201 count."""

    def __post_init__(self) -> None:
        require(self.logit_std > 0, "logit_std", self.logit_std, "above 0")
        require(0 <= self.text_noise < 10, "text_noise", self.text_noise, "from 0 to below 10")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which clips are seen, in what order and shape."""

    split: str = "train"
    """Split of the dataset."""
    window: int = 1024
    """Clips that are shuffled together, over several shards; a dataset with fewer is shuffled as a
    whole. One window of unpacked clips (170 MB at 10 s a clip) should fit `cache_mb`."""
    mirror: float = 0.5
    """Share of clips shown in a mirror, with left and right swapped in their captions."""
    crop: float = 0.0
    """Share of clips that are cut to a random part of themselves, from half of it up."""
    frame_buckets: tuple[int, ...] = (60, 90, 120, 180, 240, 360)
    """Padded lengths in frames: a micro-batch takes the first that holds its longest clip. The last
    is the longest clip seen; longer ones are cut."""
    token_multiple: int = 8
    """Text of a micro-batch is padded to a multiple of this many tokens."""
    reader: Literal["auto", "ray", "local", "processes"] = "auto"
    """Who reads ahead: Ray Data on any node (ray), a thread of the training process (local), or
    processes beside it. All give the same batches; auto: local when the unpacked dataset fits
    `cache_mb`, else ray."""
    readers: int = 2
    """Reading processes for each rank, of `ray` and `processes`."""
    cache_mb: int = 1024
    """Unpacked clips that a reading process keeps, in megabytes; and as much again of features
    made of them."""
    prefetch: int = 2
    """Steps that are read ahead of the one being computed."""

    def __post_init__(self) -> None:
        for name in ("window", "token_multiple", "readers", "cache_mb", "prefetch"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("mirror", "crop"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        buckets = self.frame_buckets
        require(
            len(buckets) > 0 and min(buckets) >= MIN_FRAMES and list(buckets) == sorted(buckets),
            "frame_buckets",
            buckets,
            f"rising lengths of {MIN_FRAMES} frames and more",
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, its schedule, and the running mean of the weights."""

    learning_rate: float = 1e-4
    """Learning rate after warm-up, constant from there on."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.999
    """Decay of AdamW's second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    warmup_steps: int = 1000
    """Steps over which the learning rate rises from zero."""
    cooldown_steps: int = 0
    """Last steps, over which it falls to zero. Above 0 the schedule needs the total length: the
    first --max-steps of the run folder stays the total, and a longer run stays at rate zero."""
    clip_norm: float = 1.0
    """Largest norm of the gradient."""
    ema_decay: float = 0.9999
    """Decay of the running mean of the weights, which is what checkpoints show the world; shorter
    at the start."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        require(self.warmup_steps >= 1, "warmup_steps", self.warmup_steps, "at least 1")
        require(self.cooldown_steps >= 0, "cooldown_steps", self.cooldown_steps, "0 or more")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "above 0")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        for name in ("beta1", "beta2", "ema_decay"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """When checkpoints are written and which are kept."""

    every_steps: int = 1000
    """Steps between two checkpoints; the last step always has one."""
    keep: int = 3
    """Newest checkpoints that stay."""
    keep_best: bool = True
    """Whether the one of lowest validation loss (training loss without a val split) stays too."""
    in_background: bool = True
    """Whether training goes on while a staged copy is written."""
    val_clips: int = 64
    """Clips of the val split whose loss is measured at each checkpoint, the same each time; 0:
    none."""

    def __post_init__(self) -> None:
        require(self.every_steps >= 1, "every_steps", self.every_steps, "at least 1")
        require(self.keep >= 1, "keep", self.keep, "at least 1")
        require(self.val_clips >= 0, "val_clips", self.val_clips, "0 or more")


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """How much is borne before a run ends."""

    max_restarts: int = 8
    """Times that the workers are started again from the last checkpoint after one died."""
    collective_timeout_s: float = 180.0
    """Seconds that ranks wait for each other before the one that hangs is named and replaced. The
    slowest step, and a checkpoint's gathering, must fit into it."""
    data_timeout_s: float = 900.0
    """Seconds that a rank waits for its next clips before its reader counts as hung and the workers
    start again; the start of the readers must fit into it."""
    max_bad_steps: int = 3
    """Steps in a row with a loss or gradient that is not finite: each is skipped and its clips are
    named; after so many the weights go back to the last checkpoint, and the second time the run
    ends."""

    def __post_init__(self) -> None:
        require(self.max_restarts >= 0, "max_restarts", self.max_restarts, "0 or more")
        require(self.max_bad_steps >= 1, "max_bad_steps", self.max_bad_steps, "at least 1")
        for name in ("collective_timeout_s", "data_timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "seconds above 0")


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """How many processes train, and what each takes."""

    num_workers: str = "1"
    """Processes, as 4; or as 2-8: as many as the cluster has room for, elastic."""
    use_gpu: Literal["auto", "yes", "no"] = "auto"
    """auto: a GPU each where the cluster has any."""
    cpus_per_worker: float = 1.0
    """CPUs that Ray sets aside for each."""
    cpu_threads: int = 1
    """Threads of a worker on CPU; part of what decides its last bits."""
    shares: tuple[float, ...] = ()
    """Share of the global batch of each rank, for unlike GPUs, as 3,1; empty: equal ones."""
    labels: tuple[str, ...] = ()
    """Node label of each rank, as pool=a100, for unlike GPUs; empty: any node."""

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", self.num_workers) is not None
            and self.min_workers <= self.max_workers,
            "num_workers",
            self.num_workers,
            "a count such as 4, or a range such as 2-8",
        )
        require(self.cpus_per_worker > 0, "cpus_per_worker", self.cpus_per_worker, "above 0")
        require(self.cpu_threads >= 1, "cpu_threads", self.cpu_threads, "at least 1")
        for name in ("shares", "labels"):
            given = getattr(self, name)
            require(
                len(given) == 0 or (len(given) == self.max_workers and not self.is_elastic),
                name,
                given,
                f"none, or one for each of a fixed number of workers ({self.num_workers})",
            )
        require(all(s > 0 for s in self.shares), "shares", self.shares, "numbers above 0")
        require(all("=" in x for x in self.labels), "labels", self.labels, "key=value each")

    @property
    def min_workers(self) -> int:
        """Fewest processes that train."""
        return int(self.num_workers.partition("-")[0])

    @property
    def max_workers(self) -> int:
        """Most processes that train."""
        return int(self.num_workers.rpartition("-")[2])

    @property
    def is_elastic(self) -> bool:
        """Whether the number may change while training."""
        return self.min_workers != self.max_workers


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    data: str
    """Folder or URL of the shards, as every node sees it."""
    out: str
    """Run folder, as every node sees it."""
    preset: str = "tiny"
    """Model and defaults, one of `PRESETS`."""
    init: str | None = None
    """Model to start from: a release or converted folder, a checkpoint, a built-in name."""
    max_steps: int = 100_000
    """Optimizer steps; may grow when a run is resumed."""
    seed: int = 0
    """Seed of the initial weights and of everything drawn."""
    global_batch: int = 0
    """Clips a step over all workers, whatever their number; 0: micro_batch for each worker of the
    first start."""
    micro_batch: int = 32
    """Clips that a worker computes at once; what is left of its share is accumulated."""
    log_every: int = 100
    """Steps between two reports."""
    llm_path: str | None = None
    """Folder of the Qwen3 model."""
    clip_path: str | None = None
    """Folder of the CLIP text model."""
    feature_store: str | None = None
    """Folder of the captions' features, as every node sees it; None: `text` in the run folder."""
    tensorboard: bool = True
    """Whether TensorBoard events are written, where it is installed."""
    trackers: tuple[str, ...] = ()
    """Further trackers: wandb, mlflow."""
    profile_ranks: tuple[int, ...] = ()
    """Ranks whose third to fifth step are profiled."""
    address: str | None = None
    """Ray cluster; None: RAY_ADDRESS, else this machine."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What is learned."""
    input: DataConfig = field(default_factory=DataConfig)
    """Which clips are seen."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the weights move."""
    saving: SavingConfig = field(default_factory=SavingConfig)
    """Checkpoints."""
    failures: FailureConfig = field(default_factory=FailureConfig)
    """What is borne."""
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    """Processes."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How they share the work."""
    text: TextPlacement = field(default_factory=TextPlacement)
    """Precision and memory limits of the text encoder."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "micro_batch", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.global_batch >= 0, "global_batch", self.global_batch, "0 or more")
        require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        require(bool(self.data), "data", self.data, "a folder or URL of shards")
        require(
            "://" not in self.out or self.out.startswith("file://"),
            "out",
            self.out,
            "a folder that every node sees; copy checkpoints to an object store from there",
        )


def tiny_model(text_dim: int) -> ModelConfig:
    """A small model for whole bodies: the release's switches, 14 MB with its word vectors.

    Wider than the 201 features: near the end of the flow each feature's noise must pass through the
    network, and a narrower one leaves some of it in the motion (seen at 160 on 191 that move).
    text_dim: width of the static word vectors, context and vector alike.
    """
    return static_model(
        text_dim, name="tiny", feat_dim=208, num_layers=6, num_heads=13, mlp_ratio=2.0
    )


def static_model(
    text_dim: int,
    *,
    name: str,
    feat_dim: int,
    num_layers: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
) -> ModelConfig:
    """A model of the release's switches over static word vectors of width `text_dim`."""
    return ModelConfig(
        network=NetworkConfig(
            feat_dim=feat_dim,
            num_layers=num_layers,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            ctxt_input_dim=text_dim,
            vtxt_input_dim=text_dim,
            mask_mode="narrowband",
            apply_rope_to_single_branch=False,
            time_factor=1000.0,
            refiner_num_layers=1,
        ),
        text=TextConfig(kind="static", max_context_tokens=64),
        sampling=SamplingConfig(num_steps=24, guidance_scale=1.5),
        name=name,
        licence="Apache-2.0",
    )
