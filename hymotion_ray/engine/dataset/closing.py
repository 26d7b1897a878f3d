"""The last step of an ingest: the report's page and the page that plays clips. Ray-free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import torch

from hymotion_ray.config.ingest import FPS, MAX_FRAMES, GateConfig, IngestConfig
from hymotion_ray.engine.dataset.manifest import Manifest, table_batches
from hymotion_ray.engine.identity import digest
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.html import html_page, viewer_data
from hymotion_ray.formats.ingest_report import ReportData, Shown, report_page
from hymotion_ray.formats.shard_table import ShardClip, from_table
from hymotion_ray.formats.shards import SPLITS, STATS_FILE, Dataset, read_shard
from hymotion_ray.formats.svg_plots import Histogram
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton

REPORT_FILE, PLAYER_FILE = "report.html", "clips.html"
_TABLE_ROWS = 200
_PICTURES_A_REASON = 3


def write_report(store: Store, manifest: Manifest, config: IngestConfig) -> str:
    """Write report.html and clips.html, unless they are there for this dataset; the report's URL.

    The same dataset gives the same pages.
    """
    mark = digest({"manifest": manifest})
    if store.exists(REPORT_FILE) and mark.encode() in store.read_bytes(REPORT_FILE):
        return store.url(REPORT_FILE)
    dataset = Dataset(store, manifest)
    accepted = [_shown(clip, dataset.skeleton) for clip in _first(dataset, config.report_clips)]
    if accepted:
        page = html_page(
            viewer_data([shown.motion for shown in accepted]), title="Clips of the dataset"
        )
        store.write_bytes(PLAYER_FILE, page.encode())
    stats = json.loads(store.read_bytes(STATS_FILE))
    data = ReportData(
        title="Ingest report",
        mark=mark,
        counts=manifest["counts"],
        fps=FPS,
        histograms=_histograms(store, manifest, config.gates),
        feature_std=stats["std"],
        accepted=accepted,
        rejected=_rejected(store, manifest, dataset.skeleton, config.report_clips),
        first_rejects=_first_rejects(store, manifest),
        player=PLAYER_FILE if accepted else None,
    )
    store.write_bytes(REPORT_FILE, report_page(data).encode())
    return store.url(REPORT_FILE)


def _first(dataset: Dataset, count: int) -> list[ShardClip]:
    """The first clips, one a take, of train if it has any: a fair sample, as shards follow a hash's
    order.
    """

    def clips() -> Iterator[ShardClip]:
        groups: set[str] = set()
        for split in SPLITS:
            for shard in dataset.shards(split):
                for clip in read_shard(dataset, shard):
                    if clip.split_group not in groups:
                        groups.add(clip.split_group)
                        yield clip

    return list(islice(clips(), count))


def _shown(clip: ShardClip, skeleton: Skeleton) -> Shown:
    said = [caption.text for caption in clip.captions if not caption.mirrored]
    text = "; ".join(said[:3])
    return Shown(name=clip.clip_id, text=text or "no caption", motion=_motion(clip, skeleton, text))


def _motion(clip: ShardClip, skeleton: Skeleton, text: str) -> Motion:
    return Motion.from_rotations(
        torch.from_numpy(clip.rot6d),
        torch.from_numpy(clip.transl),
        skeleton,
        FPS,
        {"prompt": text or clip.clip_id, "licence": clip.licence},
    )


def _rejected(
    store: Store, manifest: Manifest, skeleton: Skeleton, limit: int
) -> dict[str, list[Shown]]:
    found: dict[str, list[Shown]] = {}
    for batch in table_batches(store, manifest, "samples"):
        for clip in from_table(pa.Table.from_batches([batch])):
            shown = found.setdefault(clip.split_group, [])
            if len(shown) < min(limit, _PICTURES_A_REASON):
                text = str(clip.provenance["message"])
                motion = _motion(clip, skeleton, f"{clip.split_group}: {text}")
                shown.append(Shown(name=clip.clip_id, text=text, motion=motion))
    return {code: shown for code, shown in found.items() if shown}


def _first_rejects(store: Store, manifest: Manifest) -> list[dict[str, str]]:
    columns = ["name", "code", "message", "is_motion"]
    rows = (r for b in table_batches(store, manifest, "rejects", columns) for r in b.to_pylist())
    return list(islice((r for r in rows if r["is_motion"]), _TABLE_ROWS))


def _histograms(store: Store, manifest: Manifest, gates: GateConfig) -> list[Histogram]:
    """Numbers of all accepted clips, counted batch by batch."""
    g = gates
    by_column = {
        "num_frames": Histogram.empty("length, frames at 30 fps", 0, MAX_FRAMES),
        "travel": Histogram.empty("travel, m/s", 0, 12, limits=[g.max_travel_m_s]),
        "speed": Histogram.empty("fastest joint, m/s", 0, 30, limits=[g.max_speed_m_s]),
        "turn": Histogram.empty("fastest turn, rad/s", 0, 95, limits=[g.max_turn_rad_s]),
        "static_share": Histogram.empty(
            "share without movement", 0, 1, limits=[g.max_static_share]
        ),
        "skate": Histogram.empty("share with a sliding foot", 0, 1, limits=[g.max_skate]),
        "hover": Histogram.empty("height above the floor, m", 0, 0.3, limits=[g.max_hover_m]),
        "fall": Histogram.empty(
            "fall in flight, share of gravity", 0, 4, limits=[g.min_fall, g.max_fall]
        ),
        "fit_error": Histogram.empty("fit error, m", 0, 0.2, limits=[g.max_fit_error_m]),
        "jitter": Histogram.empty("jitter, 10 m/s³", 0, 200),
    }
    for batch in table_batches(store, manifest, "clips", list(by_column)):
        for name, histogram in by_column.items():
            column = batch[name].to_numpy(zero_copy_only=False)
            histogram.add(np.asarray(column, dtype=np.float64))
    return list(by_column.values())
