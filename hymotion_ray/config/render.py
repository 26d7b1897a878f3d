"""What a render job is. Knows no ray and no files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from hymotion_ray.config.fields import require
from hymotion_ray.config.grid import GridCell
from hymotion_ray.config.sampling import Method, NoiseSource, Precision, SamplingConfig
from hymotion_ray.config.split import Offload, SplitConfig
from hymotion_ray.config.text import TextPlacement

RENDER_SCHEMA_VERSION = 1
MAX_SEED = 2**63 - 1

Layout = Literal["files", "shards"]
Axis = Literal["y-up", "z-up"]


@dataclass(frozen=True, kw_only=True)
class RewriteConfig:
    """An OpenAI-compatible chat endpoint that turns a prompt into a caption and a length."""

    endpoint: str
    """Base URL, as in https://host/v1."""
    model: str
    """Model name the endpoint knows."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never stored."""
    concurrency: int = 16
    """Requests under way at once."""
    timeout_s: float = 60.0
    """Seconds a request may take."""

    def __post_init__(self) -> None:
        require(
            self.endpoint.startswith(("http://", "https://")),
            "rewrite.endpoint",
            self.endpoint,
            "an http:// or https:// URL",
        )
        require(1 <= self.concurrency <= 1024, "rewrite.concurrency", self.concurrency, "1 to 1024")
        require(self.timeout_s > 0, "rewrite.timeout_s", self.timeout_s, "seconds > 0")


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """Where the stages of a render job run."""

    num_samplers: int | None = None
    """Samplers; None: one a GPU, or one a CPU where the cluster has no GPU; with a split, as many
    as there is room for."""
    sampler_gpus: float | None = None
    """GPU share of a sampler; None: 1 where the cluster has GPUs (less the encoder's), else 0."""
    encoder_gpus: float | None = None
    """GPU share of a text encoder; None: a quarter for Qwen3 where the cluster has GPUs, else 0."""
    num_encoders: int = 1
    """Text encoder processes."""
    cpu_threads: int = 1
    """Threads of a sampler on CPU."""
    rows: int | None = None
    """Clips a sampler call; None: by device."""
    prices: tuple[str, ...] = ()
    """Price of an hour of a GPU as KIND=AMOUNT, KIND a part of its name: A100=3.2."""

    def __post_init__(self) -> None:
        for name in ("num_samplers", "num_encoders", "cpu_threads", "rows"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"resources.{name}", value, "at least 1")
        for name in ("sampler_gpus", "encoder_gpus"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, f"resources.{name}", value, "0 to 1")
        for price in self.prices:
            require(
                re.fullmatch(r"[^=]+=\d+(\.\d+)?", price) is not None,
                "resources.prices",
                price,
                "KIND=AMOUNT such as A100=3.2",
            )

    @property
    def price_of(self) -> dict[str, float]:
        """The prices by kind."""
        pairs = (price.split("=") for price in self.prices)
        return {kind: float(amount) for kind, amount in pairs}


@dataclass(frozen=True, kw_only=True)
class RenderConfig:
    """A bulk render job: prompts in, motion files out."""

    prompts: tuple[str, ...]
    """Prompt files, folders, globs or URLs."""
    model: str
    """Built-in name (`tiny`) or model folder."""
    out: str
    """Output folder or URL."""
    num_seeds: int = 1
    """Clips a prompt, of seeds 0, 1, ...; a row's own seeds and `seed_list` come before it."""
    seed_list: tuple[int, ...] = ()
    """Seeds a prompt, instead of `num_seeds`."""
    duration: float | None = None
    """Seconds of a clip whose row gives no length; None: 5."""
    num_steps: int | None = None
    """Solver steps; None: the model's own."""
    guidance_scale: float | None = None
    """Classifier-free guidance; None: the model's own."""
    method: Method | None = None
    """Solver; None: the model's own."""
    guidance_interval: tuple[float, float] | None = None
    """First and last time t of guidance, an approximate mode; None: guidance at all times."""
    null_every: int | None = None
    """Steps from one new null branch of guidance to the next, an approximate mode; None: 1."""
    precision: Precision = "auto"
    """Number format of the network; auto: the best the device has."""
    noise: NoiseSource = "cpu"
    """Whose generator draws the noise: the CPU's, the same on every machine, or each GPU's own."""
    exact: str | None = None
    """The one grid cell, as ROWSxFRAMESxTOKENS, that every clip is computed in; then devices,
    libraries and precision may not vary either, and what would differ fails. None: cells by length.
    """
    split: SplitConfig | None = None
    """How several processes compute as one sampler; None: each sampler is one process."""
    offload: Offload = "none"
    """layers: a sampler's weights wait in host memory and come to its GPU block by block."""
    formats: tuple[str, ...] = ("npz",)
    """Files a clip."""
    axis: Axis = "y-up"
    """Up axis of the npz files."""
    layout: Layout = "files"
    """One file a clip and format, or Parquet shards."""
    best_of: int = 1
    """Candidates sampled for each clip asked for; the one of best quality is kept."""
    strict: bool = False
    """Whether lengths outside the model's range reject a row instead of being clamped."""
    id_policy: Literal["error", "suffix", "skip"] = "error"
    """What happens to a second row with the same explicit id."""
    max_failures: str | None = None
    """Failed items after which the job stops: a count, or a share such as 5%."""
    preview_clips: int = 12
    """Clips on the index.html page."""
    llm_path: str | None = None
    """Folder of the Qwen3 model."""
    clip_path: str | None = None
    """Folder of the CLIP text model."""
    text: TextPlacement = field(default_factory=TextPlacement)
    """Precision and memory limits of the text encoder; its device is what the stage gets."""
    rewrite: RewriteConfig | None = None
    """Prompt rewriter, when wanted."""
    stall_s: float = 1800.0
    """Seconds without a sign of life after which a process is replaced, or a stuck job ended."""
    address: str | None = None
    """Ray cluster to join; None: RAY_ADDRESS when set, else a cluster of this machine."""
    plan: str | None = None
    """File of `plan --json` that the job carries out; None: it makes its own."""
    preset: str | None = None
    """Single card whose limits the job keeps, such as card-8gb; None: by the cards there are."""
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    """Where the stages run."""

    def __post_init__(self) -> None:
        require(len(self.prompts) > 0, "prompts", self.prompts, "at least one file or folder")
        is_count = isinstance(self.num_seeds, int) and 1 <= self.num_seeds <= 1_000_000
        require(is_count, "num_seeds", self.num_seeds, "1 to 1000000")
        for seed in self.seed_list:
            require(0 <= seed <= MAX_SEED, "seed_list", seed, f"0 to {MAX_SEED}")
        require(
            len(set(self.seed_list)) == len(self.seed_list),
            "seed_list",
            self.seed_list,
            "seeds without repeats",
        )
        require(
            self.duration is None
            or (isinstance(self.duration, int | float) and 0 < self.duration < 1e5),
            "duration",
            self.duration,
            "seconds > 0",
        )
        shortcuts = self.sampling_over(SamplingConfig()).shortcuts
        require(
            self.guidance_scale is None or self.guidance_scale > 1 or not shortcuts,
            "guidance_scale",
            self.guidance_scale,
            "above 1 with guidance_interval or null_every, which save work of guidance",
        )
        if self.exact is not None:
            cell = GridCell.parse(self.exact)
            require(
                self.resources.rows in (None, cell.rows),
                "rows",
                self.resources.rows,
                f"{cell.rows}, the rows of exact {cell}; or leave it out",
            )
        if self.split is not None:
            self._check_split(self.split)
        require(
            self.split is None or self.offload == "none",
            "offload",
            self.offload,
            "none with a split, whose processes hold a part of the weights each",
        )
        whole = self.split is None and self.offload == "none"
        require(
            self.precision != "float8" or whole,
            "precision",
            self.precision,
            "float8 without split and offload, whose networks do not have it",
        )
        require(1 <= self.best_of <= 64, "best_of", self.best_of, "1 to 64")
        require(len(self.formats) > 0, "formats", self.formats, "at least one")
        require(len(set(self.formats)) == len(self.formats), "formats", self.formats, "no repeats")
        require(self.stall_s > 0, "stall_s", self.stall_s, "seconds > 0")
        require(self.preview_clips >= 0, "preview_clips", self.preview_clips, "0 or more")
        require(
            self.max_failures is None
            or re.fullmatch(r"\d+|\d+(\.\d+)?%", self.max_failures) is not None,
            "max_failures",
            self.max_failures,
            "a count such as 100, or a share such as 5%",
        )

    def _check_split(self, split: SplitConfig) -> None:
        """The rows that were asked for can be shared out."""
        asked = self.resources.rows if self.exact is None else GridCell.parse(self.exact).rows
        require(
            asked is None or asked == split.fitting_rows(asked),
            "rows",
            asked,
            f"a multiple of the {split.size} processes of split {split}",
        )

    def sampling_over(self, own: SamplingConfig) -> SamplingConfig:
        """A model's `own` sampling with the job's settings over it."""
        names = ("num_steps", "guidance_scale", "method", "guidance_interval", "null_every")
        asked = {name: getattr(self, name) for name in names}
        return replace(own, **{name: v for name, v in asked.items() if v is not None})

    @property
    def exact_cell(self) -> GridCell | None:
        """The cell of `exact`."""
        return None if self.exact is None else GridCell.parse(self.exact)

    @property
    def all_formats(self) -> tuple[str, ...]:
        """Files a clip: npz always, as others can be made from it, then what was asked for."""
        return ("npz", *(name for name in self.formats if name != "npz"))

    @property
    def default_frames(self) -> int:
        """Frames of a clip whose row gives no length, at 30 a second."""
        return 150 if self.duration is None else round(self.duration * 30)

    def failure_budget(self, num_asked: int) -> int | None:
        """Failed items that end a job of `num_asked` items; None: no limit."""
        if self.max_failures is None:
            return None
        if self.max_failures.endswith("%"):
            return int(num_asked * float(self.max_failures[:-1]) / 100)
        return int(self.max_failures)
