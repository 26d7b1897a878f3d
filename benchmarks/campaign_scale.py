"""Does a job of very many rows keep its pace and its memory?

Two parts, each resumable and kept as JSON in the work folder; run again to go on or to print.

- `bookkeeping`: identities, the manifest's rows, the list of work and its chunks at `--keep` rows,
  half of which an earlier run has done; no Ray. Time and memory of every step.
- `render`: `--rows` prompts through a whole job on Ray with shards as output: reading, tokens,
  identities, cells, chunks, manifest. The sampler is a stand-in (`StandIn`): no network and no
  decoder, and clips of a few bytes. The job is killed on its way and started again.

    python benchmarks/campaign_scale.py [--rows 1000000] [--keep 20000000] [--work DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from hymotion_ray.config.grid import Grid
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.engine.identity import PromptIdentity
from hymotion_ray.engine.lease import LeaseCheck
from hymotion_ray.engine.manifest import count_rows, part_names
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.job import run_job
from hymotion_ray.engine.render.placement import Placement
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.worklist import Worklist, WorkPrompt, target_key
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.names import safe_stem
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.motion import Motion

_MIB = 2**20
_RENDER_ROWS = 64
_CLIP = b"a stand-in for a clip"


# --- the job with a stand-in ----------------------------------------------------------------------


@dataclass
class StandIn:
    """Instead of encoder, network and decoder: fills in the columns that they would."""

    name: str = "sample"

    def setup(self) -> None:
        """Nothing to load."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """The chunk with the columns of a sampled one, at once."""
        rows = chunk.items.num_rows
        words = {"device": "stand-in", "cell": "none", "precision": "none", "degradations": ""}
        columns = {name: pa.array([word] * rows, pa.string()) for name, word in words.items()}
        columns["seconds"] = pa.array([0.0] * rows, pa.float32())
        columns["noise_seed"] = pa.array([s[0] for s in chunk.column("noise_seeds")], pa.int64())
        return chunk.with_columns(columns)


@dataclass
class StandInExport(ExportStage):
    """The real export but for the clips' bytes."""

    def _motions(self, chunk: Chunk, alive: list[int]) -> list[Motion]:
        return [None] * len(alive)  # type: ignore[list-item]

    def _contents(self, motion: Motion) -> dict[str, bytes]:
        return {"npz": _CLIP}


def stand_in_steps(
    settings: StageSettings, decoder: Decoder, lease: LeaseCheck, placement: Placement
) -> list[Step]:
    """One pool; the decoder is not used."""
    stages = (StandIn(), StandInExport(settings, lease))
    return [Step(name="render", stages=stages, size=placement.samplers, depth=2)]


def render(folder: Path, rows: int, model: str) -> None:
    """The job itself, in this process."""
    prompts = folder / "prompts.jsonl"
    if not prompts.exists():
        with prompts.open("w", encoding="utf-8") as file:
            for n in range(rows):
                text = f"A person walks {n} steps ahead, turns around and waves."
                line = {"id": f"clip-{n:08d}", "text": text, "num_frames": 20 + n % 341}
                file.write(json.dumps(line) + "\n")
    config = RenderConfig(
        prompts=(str(prompts),),
        model=model,
        out=str(folder / "out"),
        layout="shards",
        preview_clips=0,
        resources=ResourceConfig(num_samplers=2, rows=_RENDER_ROWS),
        address="local",
    )
    report = run_job(config, lambda line: print(line, flush=True), stand_in_steps)
    print(report.words(), flush=True)
    raise SystemExit(report.exit_code)


def watch(process: subprocess.Popen[str], curve: list[dict[str, Any]], out: Path) -> None:
    """Note the memory of a job's processes every second until it ends."""
    began = time.monotonic()
    while process.poll() is None:
        time.sleep(1.0)
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            driver = psutil.Process(process.pid)
            workers = [p for p in driver.children(recursive=True) if "StageWorker" in p.name()]
            curve.append(
                {
                    "seconds": round(time.monotonic() - began, 1),
                    "driver_mib": driver.memory_info().rss // _MIB,
                    "largest_worker_mib": max((w.memory_info().rss for w in workers), default=0)
                    // _MIB,
                    "manifest_files": len(os.listdir(out / "manifest")),
                }
            )


def measure_render(folder: Path, rows: int, model: str) -> dict[str, Any]:
    """Run the job, kill it half way, run it again."""
    command = [sys.executable, __file__, "--inner", str(folder), "--rows", str(rows)]
    out, curve = folder / "out", []
    began = time.monotonic()
    first = subprocess.Popen([*command, "--model", model], text=True, start_new_session=True)
    kill_at = rows // _RENDER_ROWS // 2
    while first.poll() is None and len(_names(out / "shards")) < kill_at:
        time.sleep(1.0)
    half = time.monotonic() - began
    first.send_signal(signal.SIGKILL)
    first.wait()
    began = time.monotonic()
    second = subprocess.Popen([*command, "--model", model], text=True, start_new_session=True)
    watch(second, curve, out)
    store = open_store(out)
    working = [c for c in curve if c["largest_worker_mib"]]
    tenth = max(1, len(working) // 10)
    early = working[3 * tenth : 4 * tenth]
    return {
        "rows": rows,
        "killed_after_s": round(half, 1),
        "shards_then": kill_at,
        "second_run_s": round(time.monotonic() - began, 1),
        "exit_code": second.returncode,
        "manifest_rows": count_rows(store),
        "manifest_files": len(part_names(store)),
        "most_manifest_files": max((c["manifest_files"] for c in curve), default=0),
        "driver_mib_early": max((c["driver_mib"] for c in early), default=0),
        "driver_mib_late": max((c["driver_mib"] for c in working[-tenth:]), default=0),
        "worker_mib_early": max((c["largest_worker_mib"] for c in early), default=0),
        "worker_mib_late": max((c["largest_worker_mib"] for c in working[-tenth:]), default=0),
        "curve": curve[:: max(1, len(curve) // 200)],
    }


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


# --- the books alone ------------------------------------------------------------------------------


def measure_bookkeeping(rows: int) -> dict[str, Any]:
    """The list of work at `rows` clips, half of them done before."""
    steps: dict[str, Any] = {"rows": rows}

    def identity(number: int) -> bytes:
        own = PromptIdentity(
            folder_identity="folder",
            text=f"a person walks number {number} over a field",
            num_frames=20 + number % 341,
            num_steps=50,
            guidance_scale=5.0,
        )
        return own.of((0,))

    def name(number: int) -> bytes:
        return target_key("", safe_stem(f"clip-{number:08d}", 0))

    @contextlib.contextmanager
    def timed(step: str) -> Iterator[None]:
        wall, cpu = time.monotonic(), time.process_time()
        yield
        steps[step] = {
            "wall_s": round(time.monotonic() - wall, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "rss_mib": psutil.Process().memory_info().rss // _MIB,
        }
        print(f"{step}: {steps[step]}", flush=True)

    with tempfile.TemporaryDirectory() as scratch, Worklist(Path(scratch) / "w.sqlite") as work:
        with timed("manifest rows in"):
            work.add_known((name(n), identity(n), "npz", 1) for n in range(0, rows, 2))
        with timed("manifest sorted"):
            work.settle_known()
        with timed("names, identities, look-ups"):
            for n in range(rows):
                key = f"/clip-{n:08d}_s0"
                if work.seen.get(key) is None:
                    work.seen[key] = f"prompts.jsonl:{n}"
                prompt = WorkPrompt(
                    prompt_id=f"clip-{n:08d}",
                    group="",
                    text=f"a person walks number {n} over a field",
                    original_text=None,
                    num_frames=20 + n % 341,
                    num_steps=50,
                    guidance_scale=5.0,
                    num_tokens=10 + n % 50,
                    warnings="",
                )
                work.add_prompt(prompt)
                work.add_clip(name(n), identity(n), 0, ("npz",))
        with timed("equal identities found"):
            work.seal()
        with timed("histogram"):
            work.histogram()
        with timed("first chunk"):
            chunks = work.chunks(Grid(rows=64), 360)
            next(chunks)
        with timed("all chunks"):
            steps["chunks"] = 1 + sum(1 for _ in chunks)
        steps["list_mib"] = sum(f.stat().st_size for f in Path(scratch).iterdir()) // _MIB
    steps["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return steps


# --- the campaign ---------------------------------------------------------------------------------


def main() -> None:
    """Run what is not done yet, and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", type=int, default=20_000_000)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--work", type=Path, default=Path("campaign-scale"))
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner is not None:
        render(args.inner, args.rows, args.model)
    args.work.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, rows in (("bookkeeping", args.keep), ("render", args.rows)):
        path = args.work / f"{name}-{rows}.json"
        if not path.exists():
            folder = args.work / f"{name}-{rows}"
            folder.mkdir(exist_ok=True)
            found = (
                measure_bookkeeping(rows)
                if name == "bookkeeping"
                else measure_render(folder, rows, args.model)
            )
            path.write_text(json.dumps(found, indent=1))
        results[name] = json.loads(path.read_text())
    for name, found in results.items():
        print(f"\n{name}")
        for key, value in found.items():
            if key != "curve":
                print(f"  {key:28} {value}")


if __name__ == "__main__":
    main()
