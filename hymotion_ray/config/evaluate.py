"""What an evaluation is. Knows no ray and no files."""

from __future__ import annotations

from dataclasses import dataclass

from hymotion_ray.config.fields import require

SPLITS = ("all", "train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Motions, a dataset or a model, and what they are compared with."""

    path: str
    """Folder or file of motions, output folder of a render, dataset of shards, training run, model
    folder or built-in model; most of them may be URLs."""
    out: str | None = None
    """Folder for the report and the numbers of each clip; None: nothing is kept."""
    prompts: str | None = None
    """Prompt file that a model renders and actions are judged by: CSV with the columns prompt and
    action, or any prompt file. None: the built-in one."""
    num_seeds: int = 8
    """Clips a prompt that a model renders, of seeds 0, 1, ..."""
    num_steps: int | None = None
    """Solver steps of a model; None: its own."""
    guidance_scale: float | None = None
    """Guidance of a model; None: its own."""
    reference: str | None = None
    """Real motions to compare with: a dataset of shards or a folder of motions. The distances and
    the nearest-clip baseline need it."""
    truth: str | None = None
    """Folder with the true motion of each clip, by the same relative name without suffix."""
    split: str = "all"
    """Which clips of a dataset: all, train, val or test."""
    embedder: str | None = None
    """Evaluator for the measures on embeddings: `module:name`, or a TorchScript file."""
    limit: int | None = None
    """Clips at most, in the order of their names."""
    num_workers: int | None = None
    """Processes that measure; None: one a CPU. 0: this process alone, without Ray."""
    address: str | None = None
    """Ray cluster to join; None: RAY_ADDRESS when set, else a cluster of this machine."""

    def __post_init__(self) -> None:
        require(bool(self.path), "path", self.path, "a folder, file, URL or model")
        require(1 <= self.num_seeds <= 10_000, "num_seeds", self.num_seeds, "1 to 10000")
        require(self.split in SPLITS, "split", self.split, ", ".join(SPLITS))
        require(self.limit is None or self.limit >= 1, "limit", self.limit, "at least 1")
        require(
            self.num_workers is None or self.num_workers >= 0,
            "num_workers",
            self.num_workers,
            "0 or more",
        )
