"""What a serving endpoint is: models, pools of samplers, limits. Knows no ray and no files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hymotion_ray.config.fields import require
from hymotion_ray.config.sampling import ExactPrecision
from hymotion_ray.config.split import Offload, SplitConfig
from hymotion_ray.config.text import TextPlacement

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
Selector = tuple[str, ...]
"""Node labels as KEY=VALUE; VALUE may be `!x`, `in(a,b)` or `!in(a,b)`."""


def _check_labels(name: str, *selectors: Selector) -> None:
    for selector in selectors:
        for label in selector:
            require(label.find("=") > 0, name, label, "KEY=VALUE, with a key")


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """How many replicas a deployment has. The numbers of a pool follow its queue."""

    min_replicas: int = 1
    """Replicas that always run; 0 lets the deployment go to zero, at the price of a cold start."""
    max_replicas: int = 1
    """Replicas at most."""
    target_queue_s: float = 5.0
    """Seconds of work that may wait a replica before another one is started."""
    up_delay_s: float = 5.0
    """Seconds that more work must wait before a replica is added."""
    down_delay_s: float = 300.0
    """Seconds that less is needed before a replica is taken away."""

    def __post_init__(self) -> None:
        require(0 <= self.min_replicas <= 10_000, "min_replicas", self.min_replicas, "0 to 10000")
        require(
            max(1, self.min_replicas) <= self.max_replicas <= 10_000,
            "max_replicas",
            self.max_replicas,
            f"at least {max(1, self.min_replicas)}, at most 10000",
        )
        for name in ("target_queue_s", "up_delay_s", "down_delay_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "seconds > 0")


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Sampler replicas of one kind of machine."""

    name: str = "default"
    """Name in metrics and deployments, such as a10."""
    labels: Selector = ()
    """Labels of the nodes it runs on; none: any node."""
    fallback: tuple[Selector, ...] = ()
    """Labels to try, in this order, where no node with `labels` has room."""
    gpus: float | None = None
    """GPU share of a replica, which holds its allocator; None: none, or as `serve` finds GPUs."""
    cpus: float | None = None
    """CPUs of a replica; None: 1, less where one machine holds everything."""
    threads: int = 1
    """Threads of a replica on CPU."""
    scale: ScaleConfig | None = None
    """How many replicas; None: one, or one a GPU (else a CPU) where `serve` starts Ray itself."""
    precision: ExactPrecision = "auto"
    """Number format of the network."""
    rows: int | None = None
    """Clips at once in one cell; None: 4 on CPU, 64 on a GPU."""
    split: SplitConfig | None = None
    """How several processes, of these gpus and cpus each, compute as one replica: heads or layers.
    """
    offload: Offload = "none"
    """layers: weights wait in host memory and come to the GPU block by block."""
    least_step_s: float = 0.0
    """Seconds a step takes at least: to rehearse slower machines than there are."""

    def __post_init__(self) -> None:
        require(_NAME.fullmatch(self.name) is not None, "pool.name", self.name, "letters, digits")
        _check_labels("pool.labels", self.labels, *self.fallback)
        require(self.gpus is None or 0 <= self.gpus <= 1, "pool.gpus", self.gpus, "0 to 1")
        require(self.cpus is None or self.cpus > 0, "pool.cpus", self.cpus, "above 0")
        require(self.threads >= 1, "pool.threads", self.threads, "at least 1")
        require(self.rows is None or 1 <= self.rows <= 1024, "pool.rows", self.rows, "1 to 1024")
        if self.split is not None:
            # A batch of one clip without guidance has one row, which rows cannot share out.
            require(self.split.way != "rows", "pool.split.way", self.split.way, "heads, layers")
            alone = self.offload == "none" and not self.fallback
            allowed = "a pool without offload and fallback"
            require(alone, "pool.split", str(self.split), allowed)
        require(0 <= self.least_step_s < 60, "pool.least_step_s", self.least_step_s, "0 to 60")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Text encoder replicas of one model."""

    gpus: float | None = None
    """GPU share; None: none, or a quarter for Qwen3 where the command `serve` finds GPUs."""
    cpus: float | None = None
    """CPUs of a replica; None: 1, less where one machine holds everything."""
    labels: Selector = ()
    """Labels of the nodes it runs on."""
    fallback: tuple[Selector, ...] = ()
    """Labels to try after `labels`."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    """How many replicas."""
    text: TextPlacement = field(default_factory=TextPlacement)
    """Precision and memory limits; the device is what the replica gets."""
    llm_path: str | None = None
    """Folder of the Qwen3 model."""
    clip_path: str | None = None
    """Folder of the CLIP text model."""

    def __post_init__(self) -> None:
        _check_labels("encoder.labels", self.labels, *self.fallback)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model that requests may name, and where it runs."""

    model: str
    """`tiny`, a model folder, or hf:OWNER/NAME@REVISION, as every node sees it."""
    name: str | None = None
    """What requests call it; None: the model's own name."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """Its text encoder."""
    pools: tuple[PoolConfig, ...] = (PoolConfig(),)
    """Its samplers, by kind of machine."""

    def __post_init__(self) -> None:
        require(
            self.name is None or _NAME.fullmatch(self.name) is not None,
            "model.name",
            self.name,
            "1 to 64 letters, digits, dots, dashes",
        )
        names = [pool.name for pool in self.pools]
        require(len(names) > 0, "pools", self.pools, "at least one pool")
        require(len(set(names)) == len(names), "pools", names, "pools of different names")


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may ask for."""

    wait_s: float = 30.0
    """Seconds that a request waits for its result before it is answered 202."""
    max_body_bytes: int = 1 << 20
    """Bytes of a request's body; batches have their own limit."""
    max_batch_bytes: int = 64 << 20
    """Bytes of a batch's file."""
    max_batch_lines: int = 50_000
    """Lines of a batch's file."""
    max_text_chars: int = 2000
    """Characters of a prompt."""
    max_seeds: int = 64
    """Clips a request."""

    def __post_init__(self) -> None:
        require(0 < self.wait_s <= 3600, "limits.wait_s", self.wait_s, "0 to 3600 seconds")
        for name in (
            "max_body_bytes", "max_batch_bytes", "max_batch_lines", "max_text_chars", "max_seeds",
        ):  # fmt: skip
            require(getattr(self, name) >= 1, f"limits.{name}", getattr(self, name), "at least 1")


@dataclass(frozen=True, kw_only=True)
class QueueConfig:
    """How much work may wait, and how a sampler batches it."""

    max_wait_s: float = 20.0
    """Predicted seconds until its end beyond which a waiting request is refused with 429."""
    max_jobs: int = 2000
    """Accepted jobs that have not ended, an HTTP replica; more are refused with 429."""
    background_s: float = 4.0
    """Seconds of work a sampler takes on of jobs that nobody waits for."""
    exact: bool = False
    """Always compute in full cells of `rows`, so that a clip has the bits of `render` there."""
    max_padding: float = 0.5
    """Share of padding up to which a clip joins a longer cell that has room; 0 when exact."""
    stall_s: float = 120.0
    """Seconds without a sign of life after which a replica is replaced and its work moved."""
    attempts: int = 3
    """Times that a clip is tried when replicas die under it."""

    def __post_init__(self) -> None:
        for name in ("max_wait_s", "background_s", "stall_s"):
            require(getattr(self, name) > 0, f"queue.{name}", getattr(self, name), "seconds > 0")
        require(self.max_jobs >= 1, "queue.max_jobs", self.max_jobs, "at least 1")
        require(0 <= self.max_padding <= 10, "queue.max_padding", self.max_padding, "0 to 10")
        require(1 <= self.attempts <= 100, "queue.attempts", self.attempts, "1 to 100")


@dataclass(frozen=True, kw_only=True)
class JobsConfig:
    """Where accepted jobs and their results are kept."""

    folder: str | None = None
    """Folder or URL that every HTTP replica sees; None: one of this machine, gone with it."""
    result_ttl_s: float = 86_400.0
    """Seconds that results and records are kept after a job's end."""
    deadline_s: float = 86_400.0
    """Seconds after which a job that has not ended is `expired`."""

    def __post_init__(self) -> None:
        for name in ("result_ttl_s", "deadline_s"):
            require(getattr(self, name) > 0, f"jobs.{name}", getattr(self, name), "seconds > 0")


@dataclass(frozen=True, kw_only=True)
class WarmUpConfig:
    """What a replica computes before it says that it is ready."""

    frames: tuple[int, ...] = (90, 150)
    """Clip lengths."""
    tokens: tuple[int, ...] = (16,)
    """Prompt lengths."""
    deadline_s: float = 600.0
    """Seconds after which a replica that is still warming up is given up."""

    def __post_init__(self) -> None:
        for name in ("frames", "tokens"):
            values = getattr(self, name)
            require(all(v >= 1 for v in values), f"warm_up.{name}", values, "numbers of at least 1")
        require(self.deadline_s > 0, "warm_up.deadline_s", self.deadline_s, "seconds > 0")


@dataclass(frozen=True, kw_only=True)
class WebhookConfig:
    """How ends of jobs are told to the URLs that requests name."""

    enabled: bool = True
    """Whether requests may name one."""
    secret_env: str | None = "HYMOTION_WEBHOOK_SECRET"
    """Environment variable that holds the secret deliveries are signed with."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may be named although they are private, such as one inside the cluster."""


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """The HTTP side."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = 8000
    """Port."""
    replicas: int = 1
    """Processes that answer requests; above 1, jobs.folder must be a place that all of them see."""
    cpus: float | None = None
    """CPUs of one; None: 1, less where one machine holds everything."""
    labels: Selector = ()
    """Labels of the nodes they run on, such as those of a pool without GPUs; none: any node."""
    fallback: tuple[Selector, ...] = ()
    """Labels to try, in this order, where no node with `labels` has room."""
    keys_file: str | None = None
    """YAML file of API keys at a path or URL; None: no key is needed."""
    open_to_all: bool = False
    """Whether callers beyond this machine's loopback need no key: something else keeps them out."""
    drain_s: float = 30.0
    """Seconds that a process which is to end goes on with what it has."""
    page: bool = True
    """Whether `/` shows the page."""

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, "http.port", self.port, "0 to 65535")
        require(1 <= self.replicas <= 1000, "http.replicas", self.replicas, "1 to 1000")
        _check_labels("http.labels", self.labels, *self.fallback)
        require(self.drain_s > 0, "http.drain_s", self.drain_s, "seconds > 0")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """A serving endpoint."""

    models: tuple[ServedModel, ...] = (ServedModel(model="tiny"),)
    """Models, the first one for requests that name none."""
    http: HttpConfig = field(default_factory=HttpConfig)
    """Address, keys, drain."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    """What one request may ask for."""
    queue: QueueConfig = field(default_factory=QueueConfig)
    """How much may wait, and how it is batched."""
    jobs: JobsConfig = field(default_factory=JobsConfig)
    """Where jobs are kept."""
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    """What is computed before a replica is ready."""
    webhooks: WebhookConfig = field(default_factory=WebhookConfig)
    """Calls at the end of a job."""
    log_json: bool = False
    """Log as JSON."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector for traces; None: no traces."""

    def __post_init__(self) -> None:
        require(len(self.models) > 0, "models", self.models, "at least one model")
        require(
            self.http.replicas == 1 or self.jobs.folder is not None,
            "jobs.folder",
            self.jobs.folder,
            "a folder or URL that all HTTP replicas see, since http.replicas is above 1",
        )
