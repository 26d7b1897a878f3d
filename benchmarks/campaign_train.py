"""Kills a training run at named points and compares what it ends with to an unbroken one.

    nice -n 19 python benchmarks/campaign_train.py --kills 20 --json

Each case is one `hymotion-ray train` on one CPU worker, with a fault at a point: in the middle of
an epoch, of a save, between a save and `latest`, in a reading process, in the driver. The command
is given again until it ends by itself. The last checkpoint's tensors (running mean, weights,
moments) must then be those of the unbroken run, to the bit. All cases share one Ray; with
`--address` that one. `--without-ray` kills the same rank at the same points in a process of its
own, where the command itself starts it again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "tests" / "integration")]

from made_shards import small_dataset  # noqa: E402
from train_driver import TrainCommand  # noqa: E402
from train_runs import assert_same_bits, debug_config, train_forked, train_here  # noqa: E402

STEPS = 12
"""Over four epochs of 11 clips, with a checkpoint every 3."""
RAY_READER = ("--set", "input.reader=ray", "--set", "input.readers=1")
Cases = tuple[tuple[str, tuple[str, ...]], ...]
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
    if args.json:
        print(json.dumps({"kills": len(rows), "same_bits": good, "cases": rows}))
    else:
        print(f"{good} of {len(rows)} killed runs ended with the unbroken run's bits")
    sys.exit(0 if good == len(rows) else 1)


def _on_ray(folder: Path, args: argparse.Namespace, cases: Cases) -> list[dict[str, object]]:
    import ray

    from hymotion_ray.engine.cluster import connect

    with connect(args.address):
        return _campaign(folder, ray.get_runtime_context().gcs_address, cases)


def _without_ray(folder: Path) -> list[dict[str, object]]:
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
        row: dict[str, object] = {"fault": fault, "exit_codes": codes}
        rows.append(row | _compared(place / "out", whole, codes[0] == -signal.SIGKILL))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _campaign(folder: Path, address: str, cases: Cases) -> list[dict[str, object]]:
    data = small_dataset(folder / "data")
    whole = folder / "whole"
    train_here(debug_config(data, whole, max_steps=STEPS))
    rows = []
    for number, (fault, options) in enumerate(cases):
        place = folder / f"case-{number}"
        place.mkdir()
        command = TrainCommand(
            data,
            place / "out",
            place / "faults",
            address,
            ["--max-steps", str(STEPS), *options],
        )
        rows.append(_case(command, fault, whole))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _case(command: TrainCommand, fault: str, whole: Path) -> dict[str, object]:
    began = time.monotonic()
    is_driver = fault.startswith("driver")
    command.plan("step:8:hang" if is_driver else fault)
    starts = 0
    if is_driver:
        process = command.start()
        command.wait_for("step", "step 8", timeout=600)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        command.plan()
        starts += 1
    code = 1
    while code != 0 and starts < 4:
        code, output = command.run(timeout=900)
        starts += 1
    row: dict[str, object] = {"fault": fault, "exit_code": code, "commands": starts}
    row |= _compared(command.out, whole, code == 0)
    if not row["same_bits"]:
        row["output"] = output[-500:]
    return row | {"seconds": round(time.monotonic() - began, 1)}


def _compared(out: Path, whole: Path, went_well: bool) -> dict[str, object]:
    """Whether a run ended with the unbroken run's bits, and that after what was planned."""
    try:
        assert_same_bits(out, whole, STEPS)
    except (AssertionError, OSError) as error:
        return {"same_bits": False, "why": f"{error!s:.300}"}
    return {"same_bits": went_well}


if __name__ == "__main__":
    main()
