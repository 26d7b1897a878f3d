"""What the training switches are worth: time, bytes and memory a rank, and which fit which card.

    python benchmarks/bench_train_switches.py                 two gloo ranks on this machine
    python benchmarks/bench_train_switches.py --device cuda --size full --ranks 1
    python benchmarks/bench_train_switches.py --fit           computed table for A10 and A100

The measured part trains random weights on random clips. The computed part counts, at the full
size, what a pass keeps for its backward, on tensors without content; it needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hymotion_ray.config import ModelConfig, NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.comm_bytes import expected_bytes, is_counted, written_bytes
from hymotion_ray.engine.train.fit import fit, kept_bytes, most_rows
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.lora import num_trained
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.engine.train.tune_job import made_up_inputs
from hymotion_ray.model.init import initialise

GIB = 2**30
SIZES = {"small": (128, 6, 2, 96), "lite": (1024, 18, 16, 4096), "full": (1280, 27, 20, 4096)}
"""Width, blocks, heads, context width."""
CARDS = {"A10 24 GB": 22.0, "A100 40 GB": 39.0, "A100 80 GB": 79.0}
"""GiB that a card has for use."""
SWITCHES: dict[str, ParallelConfig] = {
    "plain": ParallelConfig(),
    "ddp, fp16 hook": ParallelConfig(comm_hook="fp16"),
    "ddp, PowerSGD rank 4": ParallelConfig(comm_hook="powersgd", powersgd_start=2),
    "zero1": ParallelConfig(strategy="zero1"),
    "zero2": ParallelConfig(strategy="zero2"),
    "zero3": ParallelConfig(strategy="zero3"),
    "recomputed": ParallelConfig(gradient_checkpointing=True),
    "zero3, recomputed": ParallelConfig(strategy="zero3", gradient_checkpointing=True),
    "bfloat16": ParallelConfig(precision="bfloat16"),
    "lora 16": ParallelConfig(lora_rank=16),
}


def model_config(size: str) -> ModelConfig:
    """A network of a size, with the release's switches."""
    width, layers, heads, context = SIZES[size]
    network = NetworkConfig(
        feat_dim=width,
        num_layers=layers,
        num_heads=heads,
        ctxt_input_dim=context,
        vtxt_input_dim=min(context, 768),
        mask_mode="narrowband",
        time_factor=1000.0,
        apply_rope_to_single_branch=False,
    )
    return ModelConfig(network=network)


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Steps of one combination at this rank."""
    device = torch.device("cuda", dist.get_rank()) if args.device == "cuda" else torch.device("cpu")
    config = SWITCHES[name]
    if args.device == "cuda" and config.precision == "float32":
        config = dataclasses.replace(config, precision="bfloat16")
    model = model_config(args.size)
    flow = FlowModel(model, torch.ones(201, dtype=torch.bool))
    initialise(flow.network, 0)
    parallel = parallelise(flow, config, device)
    optimizer = parallel.make_optimizer(1e-5, (0.9, 0.95), 0.01)
    inputs = tuple(x.to(device) for x in made_up_inputs(model, args.rows, args.frames, 40))
    seconds, sent = [], 0
    for number in range(args.steps + 3):
        if number == 3 and args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        before, start = written_bytes(), time.perf_counter()
        optimizer.zero_grad()
        parallel.backward(parallel.module(*inputs).mean())
        parallel.clip_grad_norm(1.0)
        parallel.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        after = written_bytes()
        if is_counted() and before is not None and after is not None:
            sent = after - before
        else:
            sent = expected_bytes(config, *num_trained(parallel.module), dist.get_world_size())
    held = parallel.held()
    row = {
        "switches": name,
        "step_s": round(median(seconds[3:]), 4),
        "sent_mb": round(sent / 1e6, 3),
        "parameters_mb": round(held.parameters / 1e6, 2),
        "gradients_mb": round(held.gradients / 1e6, 2),
        "optimizer_mb": round(held.optimizer / 1e6, 2),
    }
    if args.device == "cuda":
        return row | {"peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2)}
    kept = saved_bytes(lambda: parallel.module(*inputs), parallel.module)
    return row | {"activations_mb": round(kept / 1e6, 2)}


def work(rank: int, port: int, args: argparse.Namespace) -> None:
    """One rank of the measurement; rank 0 prints."""
    torch.set_num_threads(1)
    backend = "nccl" if args.device == "cuda" else "gloo"
    if args.device == "cuda":
        torch.cuda.set_device(rank)
    url = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=url, rank=rank, world_size=args.ranks)
    rows = [measure(name, args) for name in args.only or SWITCHES]
    if rank == 0:
        show(rows, args.json)
    dist.destroy_process_group()


def fits() -> list[dict[str, Any]]:
    """The largest number of rows of 360 frames that each way of training 1.0B fits on each card."""
    network = model_config("full").network
    low = ParallelConfig(precision="bfloat16")
    again = dataclasses.replace(low, gradient_checkpointing=True)
    ways: list[tuple[str, ParallelConfig, int]] = [
        ("all weights", low, 1),
        ("all weights, recomputed", again, 1),
        ("all weights, recomputed, zero1 on 4", dataclasses.replace(again, strategy="zero1"), 4),
        ("all weights, zero2 on 4", dataclasses.replace(low, strategy="zero2"), 4),
        ("all weights, zero3 on 4", dataclasses.replace(low, strategy="zero3"), 4),
        ("all weights, recomputed, zero3 on 4", dataclasses.replace(again, strategy="zero3"), 4),
        ("lora_rank 16", dataclasses.replace(low, lora_rank=16), 1),
        ("lora_rank 16, recomputed", dataclasses.replace(again, lora_rank=16), 1),
    ]
    table = []
    for words, config, num_ranks in ways:
        one = fit(network, config, rows=1, num_ranks=num_ranks).total
        kept = [
            kept_bytes(network, config, rows=rows, num_frames=360, num_tokens=40) for rows in (1, 2)
        ]
        row: dict[str, Any] = {"way": words, "one_row_gib": round(one / GIB, 1)}
        row["a_row_gib"] = round((kept[1] - kept[0]) / GIB, 2)
        for card, size in CARDS.items():
            row[card] = most_rows(network, config, int(size * GIB), num_ranks=num_ranks)
        table.append(row)
    return table


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table, or one JSON line."""
    if as_json:
        print(json.dumps(rows))
        return
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in names) + " |", flush=True)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="computed table only")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", action="append", choices=list(SWITCHES))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.fit:
        show(fits(), args.json)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, args), args.ranks)


if __name__ == "__main__":
    main()
