"""From a prompt file to fsynced npz files through `render`: how much of the sampler's pace is kept?

    python benchmarks/bench_end_to_end.py --out FILE.json                    one GPU, about 5 min
    python benchmarks/bench_end_to_end.py --device cpu --tiny --prompts 24 --out FILE.json

Prompts of mixed lengths, 2 to 12 s, one seed each, 50 Euler steps, guidance 5. Full-size network
and full-size Qwen3-8B with random weights (CLIP at its width with 2 layers; vocabularies of the
tests' small tokenizers). The pace is that of the files as they appear, from the first tenth to the
last, so that start-up is left out. The sampler alone computes the cells of the same clips in the
same process afterwards: its time for them over the time they took is `kept`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from bench_serve_gpu import Plan, make_models, text_of

from hymotion_ray.api import Model, load_model
from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.flow.plan import Row
from hymotion_ray.formats.atomic import open_store

_SHORT, _LONG = 5, 15
"""Numbers of steps whose difference in time is that of the steps alone."""


def write_prompts(path: Path, number: int) -> None:
    """Prompts of 2 to 12 s, evenly spread."""
    chooser = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for i in range(number):
            row = {"id": f"c{i:05d}", "text": text_of(i), "duration": chooser.uniform(2, 12)}
            file.write(json.dumps(row) + "\n")


def write_full_qwen(folder: Path, device: str) -> None:
    """Replace the stand-in's weights by random ones in the shape of Qwen3-8B."""
    from transformers import Qwen3Config, Qwen3Model

    small = Qwen3Config.from_pretrained(folder)
    config = Qwen3Config(
        vocab_size=small.vocab_size,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    )
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3Model(config)
    torch.set_default_dtype(before)
    model.save_pretrained(folder)


def render(work: Path, device: str) -> dict[str, Any]:
    """Run the command; its summary."""
    command = [
        sys.executable, "-m", "hymotion_ray.cli", "render", str(work / "prompts.jsonl"),
        "--model", str(work / "model"), "--llm", str(work / "qwen3"), "--clip", str(work / "clip"),
        "--out", str(work / "out"), "--json", "--preview-clips", "0",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"render on {device} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return dict(json.loads(done.stdout))


def finished(out: Path) -> list[tuple[float, str, int]]:
    """(when its file was there, cell, frames) of every clip, in order of time."""
    store = open_store(str(out))
    rows = pa.Table.from_batches(read_batches(store)).to_pylist()
    found = [
        ((out / row["file"]).stat().st_mtime, row["cell"], row["num_frames"])
        for row in rows
        if row["status"] == "done"
    ]
    assert len(found) == len(rows), "a clip failed"
    return sorted(found)


def seconds_a_clip(model: Model, cell: GridCell, device: str, num_steps: int) -> float:
    """The sampler's time for one clip of a full batch of `cell`, every clip its own prompt."""
    sampler = model.new_sampler(Grid.of_one(cell, device))
    network = model.config.network
    condition = (
        torch.randn(cell.rows, cell.tokens, network.ctxt_input_dim),
        torch.randn(cell.rows, 1, network.vtxt_input_dim),
        torch.full((cell.rows,), cell.tokens),
    )
    rows = [Row(i, cell.frames, i) for i in range(cell.rows)]

    def taken(steps: int) -> float:
        start = time.perf_counter()
        sampler.sample(*condition, rows, SamplingConfig(num_steps=steps))
        return time.perf_counter() - start

    taken(_SHORT)
    step = (taken(_LONG) - taken(_SHORT)) / (_LONG - _SHORT)
    return step * num_steps / cell.rows


def main() -> None:
    """Make models and prompts, render them, time the sampler alone, write FILE."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small networks, to rehearse")
    parser.add_argument("--prompts", type=int, default=4000)
    parser.add_argument("--work", type=Path, help="where to work; without: a temporary folder")
    args = parser.parse_args()
    plan = Plan(device=args.device, tiny=args.tiny, port=0)
    found: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "clips": args.prompts}

    def keep(**more: Any) -> None:
        found.update(more)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        work, start = Path(folder), time.perf_counter()
        keep(**make_models(plan, work))
        if not args.tiny:
            write_full_qwen(work / "qwen3", args.device)
            torch.cuda.empty_cache()
        write_prompts(work / "prompts.jsonl", args.prompts)
        keep(making_s=round(time.perf_counter() - start, 1))
        start = time.perf_counter()
        summary = render(work, args.device)
        keep(whole_command_s=round(time.perf_counter() - start, 1), summary=summary)
        times = finished(work / "out")
        tenth = len(times) // 10
        counted = times[tenth : len(times) - tenth]
        window = counted[-1][0] - counted[0][0]
        cells = Counter(cell for _, cell, _ in counted)
        keep(clips_per_s=round(len(counted) / window, 3), cells=dict(cells))
        model = load_model(work / "model", device=args.device)
        each = {
            cell: seconds_a_clip(model, GridCell.parse(cell), args.device, plan.steps)
            for cell in cells
        }
    alone = sum(each[cell] * number for cell, number in cells.items())
    keep(
        sampler_clips_per_s=round(len(counted) / alone, 3),
        kept=round(alone / window, 4),
        frames_per_s=round(sum(frames for _, _, frames in counted) / window, 1),
    )
    sys.stdout.write(json.dumps({k: v for k, v in found.items() if k != "summary"}) + "\n")


if __name__ == "__main__":
    main()
