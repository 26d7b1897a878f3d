"""A network split over 2 and 4 processes samples what one process samples, and shares the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import split_process
import torch
import torch.multiprocessing as mp
from split_process import ROWS, SAMPLING, make_network, num_bytes

from hymotion_ray.config.releases import released_network
from hymotion_ray.errors import ConfigError
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.split import balance, balance_bytes


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What every process of a group saw, by rank."""
    folder = tmp_path_factory.mktemp("split")
    mp.spawn(split_process.run, args=(request.param, str(folder)), nprocs=request.param)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("way", ["heads", "rows", "layers"])
def test_every_process_gets_the_whole_result(ranks: list[dict], way: str) -> None:
    for found in ranks:
        for one, split in zip(ranks[0]["whole"], found[way], strict=True):
            torch.testing.assert_close(split, one, rtol=1e-5, atol=1e-5)


def test_weights_are_shared_out(ranks: list[dict]) -> None:
    for found in ranks:
        assert found["heads_bytes"] <= (1 / len(ranks) + 0.05) * found["whole_bytes"]
        assert found["layers_bytes"] <= found["dearest_share"] + 0.05 * found["whole_bytes"]
    assert sum(found["layers_bytes"] for found in ranks) < 1.2 * ranks[0]["whole_bytes"]


@pytest.mark.parametrize("num_parts", [2, 4])
def test_the_full_network_can_be_shared_out_by_layers(num_parts: int) -> None:
    with torch.device("meta"):
        network = MotionMMDiT(released_network("1.0"), 360)
    costs = [float(num_bytes(block)) for block in network.blocks]
    first = float(num_bytes(network.text_refiner) + num_bytes(network.ctxt_encoder))
    each = balance_bytes(network, num_parts)
    ends = [sum(each[: i + 1]) for i in range(num_parts)]
    shares = [sum(costs[end - n : end]) for end, n in zip(ends, each, strict=True)]
    shares[0] += first
    assert max(shares) <= (1 / num_parts + 0.05) * num_bytes(network)


def test_keys_of_text_are_shared_out_with_the_heads(ranks: list[dict]) -> None:
    for found in ranks:
        assert found["heads_text"] < 1 / len(ranks) + 0.35  # modulations are whole


def test_rows_are_shared_out(ranks: list[dict]) -> None:
    batches = sum(-(-len(r) // 4) for r in _cells())
    rows_in_all = batches * 4 * 2 * SAMPLING.num_steps
    assert [found["num_rows"] for found in ranks] == [rows_in_all // len(ranks)] * len(ranks)


def _cells() -> list[list[int]]:
    """Indices of the rows, by grid cell of 30 frames and one token cell."""
    cells: dict[int, list[int]] = {}
    for i, row in enumerate(ROWS):
        cells.setdefault(-(-row.num_frames // 30), []).append(i)
    return list(cells.values())


def test_what_is_sent_is_what_the_way_needs(ranks: list[dict]) -> None:
    velocities = sum(
        -(-len(rows) // 4) * 4 * 2 * frames * 30 * 201 * 4 * SAMPLING.num_steps
        for frames, rows in zip((1, 2), _cells(), strict=True)
    )
    for found in ranks:
        assert found["rows_wire"] == velocities // len(ranks)
        assert found["heads_wire"] > found["layers_wire"] > 0


def test_pieces_are_computed_at_the_same_time(ranks: list[dict]) -> None:
    first, second = ranks[0]["busy"], ranks[1]["busy"]
    overlaps = sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in first
        for other_start, other_end in second
    )
    assert overlaps > 0


def test_balance_minimises_the_dearest_share() -> None:
    assert balance([1, 1, 1, 1], 2) == [2, 2]
    assert balance([3, 1, 1, 1], 2) == [1, 3]
    assert balance([1, 1, 1, 1], 2, first_cost=2) == [1, 3]
    assert balance([5, 1, 1], 3) == [1, 1, 1]
    with pytest.raises(ConfigError, match="1 to 2, the blocks"):
        balance([1, 1], 3)


def test_heads_that_cannot_be_divided_are_refused() -> None:
    from hymotion_ray.model.split import Wire, split_heads

    wire = Wire.__new__(Wire)
    wire.rank, wire.size, wire.group = 0, 3, None
    with pytest.raises(ConfigError, match="num_heads is 4; allowed: a multiple of the 3 processes"):
        split_heads(make_network(), wire)
