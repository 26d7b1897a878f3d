"""Does a job of very many rows keep its pace and its memory?

Three parts, each kept as JSON in the work folder when it is through; run again to go on with the
rest, or to print.

- `bookkeeping`: identities, the manifest's rows, the list of work and its chunks at `--keep` rows,
  half of which an earlier run has done; no Ray. Time and memory of every step.
- `render`: `--rows` prompts through a whole job on Ray with shards as output: reading, tokens,
  identities, cells, chunks, manifest. The sampler is a stand-in (`StandIn`): no network and no
  decoder, and clips of a few bytes. The job is killed on its way and started again.
- `clips`: `--clips` real clips of a model, few solver steps each, the command killed half way and
  run again.

    python benchmarks/campaign_scale.py [--rows 1000000] [--keep 20000000] [--clips 10000]
        [--parts bookkeeping,render,clips] [--work DIR]
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
from hymotion_ray.errors import HyMotionError
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
    """The stand-in's job, killed half way."""
    command = [sys.executable, __file__, "--inner", str(folder), "--rows", str(rows)]
    return measure([*command, "--model", model], folder / "out", rows)


def measure_clips(folder: Path, clips: int, model: str) -> dict[str, Any]:
    """The command itself on real clips of 20 to 49 frames, killed half way."""
    prompts = folder / "prompts.txt"
    lines = [f"A person walks {n} steps.#{20 + n % 30}#c{n}\n" for n in range(clips)]
    prompts.write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "hymotion_ray.cli", "render", str(prompts)]
    options = ["--model", model, "--out", str(folder / "out"), "--steps", "4", "--address", "local"]
    return measure([*command, *options], folder / "out", clips)


def measure(command: list[str], out: Path, rows: int) -> dict[str, Any]:
    """Run a job of `rows` clips, kill it half way, run it again; its counts and memory."""
    curve: list[dict[str, Any]] = []
    began = time.monotonic()
    first = subprocess.Popen(command, text=True, start_new_session=True)
    while first.poll() is None and _rows_so_far(out) < rows // 2:
        time.sleep(5.0)
    if first.poll() is not None:
        raise SystemExit(f"the job ended with {first.returncode} before it could be killed")
    half, then = time.monotonic() - began, _rows_so_far(out)
    first.send_signal(signal.SIGKILL)
    first.wait()
    began = time.monotonic()
    second = subprocess.Popen(command, text=True, start_new_session=True)
    watch(second, curve, out)
    if second.returncode:
        raise SystemExit(f"the second run ended with {second.returncode}; run this again")
    store = open_store(out)
    working = [c for c in curve if c["largest_worker_mib"]]
    tenth = max(1, len(working) // 10)
    early = working[3 * tenth : 4 * tenth]
    return {
        "rows": rows,
        "killed_after_s": round(half, 1),
        "manifest_rows_then": then,
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


def _rows_so_far(out: Path) -> int:
    """Rows of the manifest of a running job; parts may be merged away while they are counted."""
    with contextlib.suppress(HyMotionError, OSError):
        return count_rows(open_store(out))
    return 0


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
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--parts", default="bookkeeping,render,clips")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--work", type=Path, default=Path("campaign-scale"))
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner is not None:
        render(args.inner, args.rows, args.model)
    args.work.mkdir(parents=True, exist_ok=True)
    results = {}
    sizes = {"bookkeeping": args.keep, "render": args.rows, "clips": args.clips}
    for name in args.parts.split(","):
        rows, work = sizes[name], args.work.resolve()
        path, folder = work / f"{name}-{rows}.json", work / f"{name}-{rows}"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            if name == "bookkeeping":
                found = measure_bookkeeping(rows)
            elif name == "render":
                found = measure_render(folder, rows, args.model)
            else:
                found = measure_clips(folder, rows, args.model)
            path.write_text(json.dumps(found, indent=1))
        results[name] = json.loads(path.read_text())
    for name, found in results.items():
        print(f"\n{name}")
        for key, value in found.items():
            if key != "curve":
                print(f"  {key:28} {value}")


if __name__ == "__main__":
    main()
