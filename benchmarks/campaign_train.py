"""Kills a training run at named points and compares what it ends with to an unbroken one.

    nice -n 19 python benchmarks/campaign_train.py --kills 20 --json

Each run is one `hymotion-ray train` on one CPU worker, with a fault at a point: in the middle of
an epoch, of a save, between a save and `latest`, in a reading process, in the driver. With
`--together N` a run meets up to N of them one after the other, which saves the starts of drivers.
The command is given again until it ends by itself, and every fault must have come. The last
checkpoint's tensors (running mean, weights, moments) must then be those of the unbroken run, to the
bit. All cases share one Ray; with `--address` that one. `--without-ray` kills the same rank at the
same points in a process of its own, where the command itself starts it again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "tests" / "integration")]

from made_shards import small_dataset  # noqa: E402
from train_driver import TrainCommand  # noqa: E402
from train_runs import assert_same_bits, debug_config, train_forked, train_here  # noqa: E402

STEPS = 12
"""Over four epochs of 11 clips, with a checkpoint every 3."""
RAY_READER = ("--set", "input.reader=ray", "--set", "input.readers=1")
Cases = tuple[tuple[str, tuple[str, ...]], ...]
Row = dict[str, Any]
CASES: Cases = (
    ("step:2:kill", ()),
    ("step:5:kill", ()),
    ("step:8:kill", ()),
    ("step:10:kill", ()),
    ("save:1:kill", ()),
    ("save:2:kill", ()),
    ("save:4:kill", ()),
    ("save-files:1:kill", ()),
    ("save-files:2:kill", ()),
    ("save-files:3:kill", ()),
    ("save-complete:1:kill", ()),
    ("save-complete:3:kill", ()),
    ("save-named:1:kill", ()),
    ("save-named:2:kill", ()),
    ("save-done:2:kill", ()),
    ("rename:1:kill:latest", ()),
    ("rename:2:kill:latest", ()),
    ("step:7:kill", RAY_READER),
    ("read:5:kill", RAY_READER),
    ("driver at step 8", ()),
)
MORE_IN_A_RANK = ("step:4:kill", "step:11:kill", "rename:4:kill:latest", "save-done:4:kill")


def main() -> None:
    """Run the cases and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=len(CASES))
    parser.add_argument("--first", type=int, default=0, help="Case to begin with.")
    parser.add_argument("--together", type=int, default=1, help="Faults a run, where alike.")
    parser.add_argument("--address", help="Ray to use; without: one of this script's own.")
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = CASES[args.first : args.first + args.kills]
    with tempfile.TemporaryDirectory(prefix="campaign-train-") as folder:
        rows = (
            _without_ray(Path(folder)) if args.without_ray else _on_ray(Path(folder), args, cases)
        )
    good = sum(bool(row["same_bits"]) for row in rows)
    kills = sum(len(row["faults"]) for row in rows)
    if args.json:
        print(json.dumps({"kills": kills, "runs": len(rows), "same_bits": good, "cases": rows}))
    else:
        print(
            f"{good} of {len(rows)} runs, killed {kills} times, ended with the unbroken one's bits"
        )
    sys.exit(0 if good == len(rows) else 1)


def _on_ray(folder: Path, args: argparse.Namespace, cases: Cases) -> list[Row]:
    import ray

    from hymotion_ray.engine.cluster import connect

    with connect(args.address):
        return _campaign(folder, ray.get_runtime_context().gcs_address, _runs(cases, args.together))


def _runs(cases: Cases, together: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(faults, options) of each run; the driver's death has a run of its own."""
    for (options, is_driver), alike in groupby(cases, lambda c: (c[1], c[0].startswith("driver"))):
        faults = [fault for fault, _ in alike]
        size = 1 if is_driver else together
        for first in range(0, len(faults), size):
            yield tuple(faults[first : first + size]), options


def _without_ray(folder: Path) -> list[Row]:
    """The cases that a rank itself can die in, each killed rank started again in a fork."""
    data, whole = small_dataset(folder / "data"), folder / "whole"
    train_here(debug_config(data, whole, max_steps=STEPS))
    rows = []
    faults = [fault for fault, options in CASES if not options and "driver" not in fault]
    for number, fault in enumerate([*faults, *MORE_IN_A_RANK]):
        place = folder / f"case-{number}"
        (place / "faults").mkdir(parents=True)
        (place / "faults" / "plan").write_text(fault)
        config = debug_config(data, place / "out", max_steps=STEPS)
        codes = [train_forked(config, place / "faults")]
        while codes[-1] != 0 and len(codes) < 5:
            codes.append(train_forked(config, place / "faults"))
        row: Row = {"faults": [fault], "exit_codes": codes}
        rows.append(row | _compared(place / "out", whole, codes[0] == -signal.SIGKILL))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _campaign(
    folder: Path, address: str, runs: Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
) -> list[Row]:
    data = small_dataset(folder / "data")
    whole = folder / "whole"
    train_here(debug_config(data, whole, max_steps=STEPS))
    rows = []
    for number, (faults, options) in enumerate(runs):
        place = folder / f"case-{number}"
        place.mkdir()
        command = TrainCommand(
            data,
            place / "out",
            place / "faults",
            address,
            ["--max-steps", str(STEPS), "--set", f"failures.max_restarts={len(faults)}", *options],
        )
        rows.append(_case(command, faults, whole))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _case(command: TrainCommand, faults: tuple[str, ...], whole: Path) -> Row:
    began = time.monotonic()
    is_driver = faults[0].startswith("driver")
    command.plan(*(["step:8:hang"] if is_driver else faults))
    starts = 0
    if is_driver:
        process = command.start()
        command.wait_for("step", "step 8", timeout=900)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        command.plan()
        starts += 1
    code = 1
    while code != 0 and starts < 4:
        code, output = command.run(timeout=3600)
        starts += 1
    missed = [] if is_driver else [fault for fault in faults if not _came(command, fault)]
    row: Row = {"faults": list(faults), "exit_code": code, "commands": starts, "missed": missed}
    row |= _compared(command.out, whole, code == 0 and not missed)
    if not row["same_bits"]:
        row["output"] = output[-500:]
    return row | {"seconds": round(time.monotonic() - began, 1)}


def _came(command: TrainCommand, fault: str) -> bool:
    point, count, _, *text = fault.split(":")
    return sum("".join(text) in detail for detail in command.arrivals(point)) >= int(count)


def _compared(out: Path, whole: Path, went_well: bool) -> Row:
    """Whether a run ended with the unbroken run's bits, and that after what was planned."""
    try:
        assert_same_bits(out, whole, STEPS)
    except (AssertionError, OSError) as error:
        return {"same_bits": False, "why": f"{error!s:.300}"}
    return {"same_bits": went_well}


if __name__ == "__main__":
    main()
