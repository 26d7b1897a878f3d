"""What an ingest is: sources, gates with their limits, shard sizes. Knows no ray and no files."""

from __future__ import annotations

from dataclasses import dataclass, field

from hymotion_ray.config.fields import require

INGEST_SCHEMA_VERSION = 1
FPS = 30
"""Frames a second of every clip in a shard."""
MIN_FRAMES, MAX_FRAMES = 20, 360
"""Lengths that the model is trained on."""


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Limits of the quality gates; a clip beyond one of them is rejected with that reason.

    Speeds and lengths are those of the source's own body, so that a child and a giant are judged
    by the same physics.
    """

    min_frames: int = MIN_FRAMES
    """Frames at 30 a second under which a clip is `too_short`."""
    min_fall: float = 0.4
    """`wrong_fps`: least acceleration in flight, as a share of 9.81 m/s^2. A clip tagged at half
    its true rate falls at a quarter."""
    max_fall: float = 2.5
    """`wrong_fps`: largest acceleration in flight, likewise; at double the true rate it is 4."""
    max_travel_m_s: float = 11.0
    """`wrong_fps`: largest speed of the pelvis over the ground, meant over half a second; the
    fastest sprinters reach 12."""
    max_speed_m_s: float = 25.0
    """`speed_outlier`: largest speed of a joint from one frame to the next."""
    max_root_speed_m_s: float = 14.0
    """`speed_outlier`: largest speed of the pelvis from one frame to the next."""
    max_turn_rad_s: float = 70.0
    """`speed_outlier`: largest turn of a joint from one frame to the next; half a turn within one
    frame is 94."""
    max_static_share: float = 0.95
    """`static`: largest share, 0 to 1, of frames in which no joint moves."""
    still_m_s: float = 0.02
    """Speed under which a joint does not move; breathing moves a shoulder at about 0.03."""
    max_upside_down: float = 0.95
    """`upside_down`: largest share of frames with the head well below the hips; a mistaken axis."""
    max_fit_error_m: float = 0.12
    """`fit_error`: largest mean distance between our joints and the source's after retargeting."""
    max_skate: float = 0.5
    """`sliding`: largest share of frames in which a foot near the floor slides (model quality)."""
    max_hover_m: float = 0.15
    """`floating`: largest median height of the body's lowest part above the clip's floor."""

    def __post_init__(self) -> None:
        for name in (
            "min_fall",
            "max_travel_m_s",
            "max_speed_m_s",
            "max_root_speed_m_s",
            "max_turn_rad_s",
            "still_m_s",
            "max_fit_error_m",
            "max_hover_m",
        ):
            require(getattr(self, name) > 0, f"gates.{name}", getattr(self, name), "above 0")
        for name in ("max_static_share", "max_upside_down", "max_skate"):
            value = getattr(self, name)
            require(0 < value <= 1, f"gates.{name}", value, "above 0, up to 1 (1: no limit)")
        require(
            MIN_FRAMES <= self.min_frames <= MAX_FRAMES,
            "gates.min_frames",
            self.min_frames,
            f"{MIN_FRAMES} to {MAX_FRAMES}",
        )
        require(
            self.max_fall > self.min_fall, "gates.max_fall", self.max_fall, "above gates.min_fall"
        )


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Shares of the splits; a split group falls into one of them by the hash of its name."""

    val: float = 0.05
    """Share of groups in `val`."""
    test: float = 0.05
    """Share of groups in `test`; the rest is `train`."""

    def __post_init__(self) -> None:
        for name in ("val", "test"):
            value = getattr(self, name)
            require(0 <= value < 1, f"splits.{name}", value, "from 0 to below 1")
        total = self.val + self.test
        require(total < 1, "splits.val + splits.test", total, "below 1, so that train is not empty")


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """Sizes of shards."""

    target_mb: float = 64.0
    """Size of a shard in MB (1e6 bytes) that writing aims at: one request of an object store, a
    second or less of reading, and small beside a loader's memory."""
    row_group_mb: float = 8.0
    """Size of a row group in MB, the least that a reader decodes at once."""

    def __post_init__(self) -> None:
        for name in ("target_mb", "row_group_mb"):
            value = getattr(self, name)
            require(0.001 <= value <= 2000, f"shards.{name}", value, "0.001 to 2000 MB")


@dataclass(frozen=True, kw_only=True)
class WorkConfig:
    """How the work is cut. None of it changes what a clip looks like."""

    num_readers: int | None = None
    """Reader processes; None: one a CPU."""
    chunk_files: int = 32
    """Source files a task; also what a killed task repeats."""
    chunk_mb: float = 64.0
    """MB of source files a task, when that is fewer files; a larger file is a task of its own."""
    round_files: int = 100_000
    """Source files a round: shards appear, and are safe, after each."""
    round_mb: float = 64_000.0
    """MB of source files a round, when that is fewer files; also about what a round needs of
    scratch space beside its shards."""
    clip_timeout_s: float = 300.0
    """Seconds in which a reader must give its next clip; a slower one is stopped."""
    reader_tries: int = 2
    """Times a source file may stop its process before it is rejected."""

    def __post_init__(self) -> None:
        for name in ("chunk_files", "round_files", "reader_tries"):
            require(getattr(self, name) >= 1, f"work.{name}", getattr(self, name), "at least 1")
        require(
            self.num_readers is None or self.num_readers >= 1,
            "work.num_readers",
            self.num_readers,
            "at least 1",
        )
        for name in ("chunk_mb", "round_mb", "clip_timeout_s"):
            require(getattr(self, name) > 0, f"work.{name}", getattr(self, name), "above 0")


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """A job that turns motion collections into shards."""

    sources: tuple[str, ...]
    """Motion files, folders or globs."""
    out: str
    """Output folder or URL."""
    captions: str | None = None
    """Captions file that goes with the sources; those found among them are read too."""
    chunk_keys: str | None = None
    """YAML or JSON file that names the fields of `.pt` chunk files; None: the names in use."""
    licence: str = "unknown"
    """Licence of clips whose source does not say, or says that it is unknown."""
    gates: GateConfig = field(default_factory=GateConfig)
    """Limits of the quality gates."""
    splits: SplitConfig = field(default_factory=SplitConfig)
    """Shares of train, val and test."""
    shards: ShardConfig = field(default_factory=ShardConfig)
    """Sizes of shards."""
    work: WorkConfig = field(default_factory=WorkConfig)
    """How the work is cut."""
    report_clips: int = 12
    """Clips that the report shows as pictures, and as many a reason of rejects."""
    address: str | None = None
    """Ray cluster to join; None: RAY_ADDRESS when set, else a cluster of this machine."""

    def __post_init__(self) -> None:
        require(len(self.sources) > 0, "sources", self.sources, "at least one file or folder")
        require(0 <= self.report_clips <= 60, "report_clips", self.report_clips, "0 to 60")
        require(bool(self.licence.strip()), "licence", self.licence, "a name, such as CC-BY-4.0")
