"""How much of the bare loop's pace does a bulk render through Ray keep?

The bare loop is what one would write without any engine: as many plain processes as there are
cores, each with one thread, the model and an equal part of the chunks, doing encode, sample,
decode, export. The bulk render does the same chunks through the dispatcher. Both write files and
manifest parts. Start-up is left out: the clock runs from the moment every process has done its
first chunk, and stops when the first process has no more. Rounds of both alternate, so that a busy
machine disturbs both alike. Beside the clips a second stand the CPU seconds a clip of all processes
together, Ray's own included: what a busy machine disturbs least.

    python benchmarks/bench_render.py [--prompts 128] [--rounds 3] [--model tiny] [--rows 8]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.cluster import connect
from hymotion_ray.engine.device import set_threads
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.lease import Lease, LeaseCheck
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import Chunk, Stage
from hymotion_ray.engine.work_chunks import Target, WorkRow, make_chunk
from hymotion_ray.formats.atomic import open_store

_FRAMES = 90
_PROCESSES = 2
_WORDS = ("walks", "jumps", "waves", "turns", "kneels", "runs", "bows", "kicks")


def make_chunks(info: ModelInfo, prompts: int, rows: int) -> list[Chunk]:
    """Chunks of `rows` clips of three seconds, each of its own prompt."""
    texts = [f"a person {_WORDS[n % len(_WORDS)]} {n} times" for n in range(prompts)]
    tokens = info.token_counter.count_tokens(texts)
    items = [
        WorkRow(
            identity=f"{n:032x}",
            noise_seeds=(n,),
            targets=[Target(f"c{n}", "", 0, f"c{n}_s0", 1)],
            text=text,
            original_text=None,
            num_frames=_FRAMES,
            num_steps=info.sampling.num_steps,
            guidance_scale=info.sampling.guidance_scale,
            num_tokens=tokens[n],
            warnings="",
        )
        for n, text in enumerate(texts)
    ]
    return [make_chunk(items[start : start + rows]) for start in range(0, prompts, rows)]


def make_stages(
    info: ModelInfo, settings: StageSettings, lease: LeaseCheck | None
) -> tuple[Stage, ...]:
    """What one process does with a chunk."""
    return (
        EncodeStage(settings),
        SampleStage(settings),
        DecodeStage(info.decoder),
        ExportStage(settings, lease),
    )


@dataclass(frozen=True)
class Pace:
    """What a run did between its start-up and its end."""

    clips_per_s: float
    cpu_s_a_clip: float


def bare(stages: tuple[Stage, ...], chunks: list[Chunk], ends: Any) -> None:
    """One bare process: the loop; for each chunk the time and the CPU time at its end."""
    set_threads(1)
    for stage in stages:
        stage.setup()
    for chunk in chunks:
        for stage in stages:
            chunk = stage(chunk)
        ends.put((time.time(), time.process_time()))
    ends.put(None)


def run_bare(info: ModelInfo, settings: StageSettings, chunks: list[Chunk], rows: int) -> Pace:
    """The bare processes together."""
    context = multiprocessing.get_context("spawn")
    stages = make_stages(info, settings, None)
    queues = [context.Queue() for _ in range(_PROCESSES)]
    processes = [
        context.Process(target=bare, args=(stages, chunks[k::_PROCESSES], queue))
        for k, queue in enumerate(queues)
    ]
    for process in processes:
        process.start()
    ends: list[list[tuple[float, float]]] = [list(iter(queue.get, None)) for queue in queues]
    for process in processes:
        process.join()
    start, stop = max(e[0][0] for e in ends), min(e[-1][0] for e in ends)
    num_chunks = sum(start < time <= stop for e in ends for time, _ in e)
    cpu = sum((e[-1][1] - e[0][1]) / (len(e) - 1) for e in ends) / _PROCESSES
    return Pace(rows * num_chunks / (stop - start), cpu / rows)


def run_ray(info: ModelInfo, settings: StageSettings, chunks: list[Chunk], rows: int) -> Pace:
    """The same chunks through the dispatcher."""
    store = open_store(settings.out)
    marks: list[tuple[float, float, int]] = []
    with connect("local"), Lease(store, print) as lease:
        step = Step(
            name="render",
            stages=make_stages(info, settings, lease.check),
            size=lambda nodes: (_PROCESSES, _PROCESSES),
            depth=1,
        )
        dispatcher = Dispatcher([step], print)
        lease.tell(lambda: [i for c in dispatcher.running() for i in c.column("identity")])
        for done, _ in enumerate(dispatcher.run(chunks), start=1):
            workers = dispatcher.workers
            is_warm = len(workers) == _PROCESSES and all(w.num_finished for w in workers)
            if is_warm and done <= len(chunks) - _PROCESSES:
                marks.append((time.time(), cpu_of_all(), done))
    (start, cpu_start, first), (stop, cpu_stop, last) = marks[0], marks[-1]
    num_clips = rows * (last - first)
    return Pace(num_clips / (stop - start), (cpu_stop - cpu_start) / num_clips)


def cpu_of_all() -> float:
    """CPU seconds so far of this process and all that live below it, Ray's own among them."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main() -> None:
    """Run the rounds and print rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--model", default="tiny")
    args = parser.parse_args()
    config = RenderConfig(prompts=("none",), model=args.model, out="none")
    info = ModelInfo.read(config)
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=args.rows)
    chunks = make_chunks(info, args.prompts, args.rows)
    paces: dict[str, list[Pace]] = {"bare": [], "ray": []}
    for number in range(args.rounds):
        for name, run in (("bare", run_bare), ("ray", run_ray)):
            with tempfile.TemporaryDirectory() as folder:
                out = str(Path(folder) / "out")
                settings = info.stage_settings(config, grid, out=out, hashed_folders=False)
                paces[name].append(run(info, settings, chunks, args.rows))
        print(f"round {number + 1}: bare {paces['bare'][-1]}, ray {paces['ray'][-1]}", flush=True)
    pairs = list(zip(paces["bare"], paces["ray"], strict=True))
    print(
        json.dumps(
            {
                "bare_clips_per_s": round(statistics.median(b.clips_per_s for b, _ in pairs), 2),
                "ray_clips_per_s": round(statistics.median(r.clips_per_s for _, r in pairs), 2),
                "ratio_of_rates": round(
                    statistics.median(r.clips_per_s / b.clips_per_s for b, r in pairs), 3
                ),
                "ratio_of_cpu": round(
                    statistics.median(b.cpu_s_a_clip / r.cpu_s_a_clip for b, r in pairs), 3
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
