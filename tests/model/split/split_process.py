"""What each process of a split network does in the tests: samples, and says how."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.distributed as dist

from hymotion_ray.config import Grid, NetworkConfig, SamplingConfig
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.split import LayerSplit, RowSplit, Wire, balance_bytes, split_heads

CONFIG = NetworkConfig(
    feat_dim=64,
    num_layers=12,
    num_heads=4,
    ctxt_input_dim=48,
    vtxt_input_dim=24,
    mask_mode="narrowband",
    narrowband_length=0.5,
    apply_rope_to_single_branch=False,
    time_factor=1000.0,
    with_long_skip_connection=True,
    insert_start_token=True,
)
ROWS = [Row(prompt=i % 2, num_frames=24 + 3 * i, seed=i) for i in range(6)]
SAMPLING = SamplingConfig(num_steps=4, guidance_scale=3.0)


def make_network() -> MotionMMDiT:
    torch.manual_seed(0)
    network = MotionMMDiT(CONFIG, 60)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return network.requires_grad_(False).eval()


def sample(network: object) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sampler = Sampler(
        network,
        null_vector=torch.randn(1, 1, 24, generator=generator),
        null_context=torch.randn(1, 1, 48, generator=generator),
        train_frames=60,
        grid=Grid(rows=4, text_rows=4),
    )
    context = torch.randn(2, 9, 48, generator=generator)
    vector = torch.randn(2, 1, 24, generator=generator)
    return sampler.sample(context, vector, torch.tensor([9, 5]), ROWS, SAMPLING)


def num_bytes(network: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters())


def run(rank: int, size: int, folder: str) -> None:
    """Sample whole and split in every way; write what rank `rank` saw into `folder`."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    whole = make_network()
    found: dict[str, object] = {"whole": sample(whole), "whole_bytes": num_bytes(whole)}

    heads, wire = copy.deepcopy(whole), Wire()
    split_heads(heads, wire)
    found["heads"] = sample(heads)
    found["heads_bytes"], found["heads_wire"] = num_bytes(heads), wire.num_bytes
    found["heads_text"] = heads.text_row_bytes(9) / whole.text_row_bytes(9)

    rows = RowSplit(copy.deepcopy(whole), Wire())
    found["rows"] = sample(rows)
    found["rows_wire"], found["num_rows"] = rows.wire.num_bytes, rows.num_rows

    costs = [float(num_bytes(block)) for block in whole.blocks]
    first = float(num_bytes(whole.text_refiner) + num_bytes(whole.ctxt_encoder))
    each = balance_bytes(whole, size)
    ends = [sum(each[: i + 1]) for i in range(size)]
    shares = [sum(costs[end - n : end]) for end, n in zip(ends, each, strict=True)]
    found["dearest_share"] = max(shares[0] + first, *shares[1:])
    layers = LayerSplit(copy.deepcopy(whole), Wire(), each, 4)
    found["layers"] = sample(layers)
    found["layers_bytes"] = num_bytes(layers.network)
    found["layers_wire"], found["busy"] = layers.wire.num_bytes, layers.busy
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
