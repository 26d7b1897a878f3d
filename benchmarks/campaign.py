"""All long runs of the rendering engine, one after the other, and one table of what they found.

Each campaign is a script of its own and keeps what it has in the work folder: run this again to go
on where it was stopped. `make campaign` runs it after the tests marked slow.

    python benchmarks/campaign.py [--only kill,mixed,scale,pace] [--work DIR] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "kill": ("campaign_kill.py", ("--kills", "100")),
    "mixed": ("campaign_mixed.py", ("--chunks", "120", "--json")),
    "scale": ("campaign_scale.py", ()),
    "pace": ("bench_render.py", ("--prompts", "128", "--rounds", "3")),
}
"""Campaigns by name: script and arguments. Those that keep files get `--work` besides."""
KEEPS_FILES = ("kill", "scale")


def run(name: str, work: Path) -> int:
    """Run one campaign, its output both shown and kept; its exit code."""
    script, arguments = SCRIPTS[name]
    command = [sys.executable, str(HERE / script), *arguments]
    if name in KEEPS_FILES:
        command += ["--work", str(work / name)]
    print(f"\n--- {name}: {' '.join(command[1:])}", flush=True)
    log = work / f"{name}.log"
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            sink.write(line)
        return process.wait()


def last_json(log: Path) -> dict[str, Any]:
    """The JSON object on the last line of a log that is one; empty where there is none."""
    for line in reversed(log.read_text(encoding="utf-8").splitlines()):
        if line.startswith("{") and line.endswith("}"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def kill_figures(work: Path) -> dict[str, Any]:
    """Kills by point and what they did, from the rounds that are kept."""
    lines = (work / "kill" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    kills: dict[str, int] = {}
    for one in rounds:
        for point, number in one["kills"].items():
            kills[point] = kills.get(point, 0) + number
    total = sum(kills.values())
    extra = sum(one["computed"] - one["asked"] for one in rounds)
    return {
        "kills": total,
        "kills_by_point": kills,
        "rounds": len(rounds),
        "runs": sum(one["runs"] for one in rounds),
        "extra_clips_a_kill": round(extra / max(1, total), 2),
        "faults": [fault for one in rounds for fault in one["faults"]],
    }


def mixed_figures(work: Path) -> dict[str, Any]:
    """The mixed pool against the sum of its paces."""
    found = last_json(work / "mixed.log")
    paces = found["paces"]
    return {
        "mixed_s": paces["seconds"],
        "mixed_ideal_s": paces["ideal"],
        "mixed_over_ideal": round(paces["seconds"] / paces["ideal"], 3),
        "mixed_shares": paces["shares"],
        "mixed_late_node_s": found["late"]["seconds_until_its_first"],
        "mixed_once": paces["once"] and found["killed"]["once"],
    }


def scale_figures(work: Path) -> dict[str, Any]:
    """What every part of the scale campaign measured, without its curves."""
    figures: dict[str, Any] = {}
    for path in sorted((work / "scale").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        found.pop("curve", None)
        figures[path.stem] = found
    return figures


def pace_figures(work: Path) -> dict[str, Any]:
    """Through Ray against the bare loop."""
    found = last_json(work / "pace.log")
    return {"ray_over_bare": found["ratio_of_rates"], **found}


FIGURES = {
    "kill": kill_figures,
    "mixed": mixed_figures,
    "scale": scale_figures,
    "pace": pace_figures,
}


def main() -> None:
    """Run what is asked for, print one table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SCRIPTS), help="campaigns, in this order")
    parser.add_argument("--work", type=Path, default=Path("campaign"))
    parser.add_argument("--out", type=Path, help="file of the figures  [default: results/...]")
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(",") if name.strip()]
    unknown = sorted(set(names) - set(SCRIPTS))
    if unknown:
        parser.error(f"--only has {', '.join(unknown)}; allowed: {', '.join(SCRIPTS)}")
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    codes = {name: run(name, work) for name in names}
    figures: dict[str, Any] = {}
    for name, code in codes.items():
        if code == 0 or name == "kill":
            figures |= FIGURES[name](work)
    figures |= {"commit": commit(), "command": " ".join(["python", *sys.argv])}
    day = datetime.date.today().isoformat()
    out = args.out or HERE / "results" / f"cpu{os.cpu_count()}-{day}-campaign.json"
    out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print_table(figures, codes)
    print(f"figures: {out}")
    sys.exit(any(codes.values()))


def commit() -> str:
    """The commit that was run; empty outside a checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip()


def print_table(figures: dict[str, Any], codes: dict[str, int]) -> None:
    """One line a figure; parts of a campaign are set in."""
    print(f"\n{'campaign':28} exit code")
    for name, code in codes.items():
        print(f"{name:28} {code}")
    print(f"\n{'figure':28} value")
    for key, value in figures.items():
        if isinstance(value, dict):
            print(key)
            for part, number in value.items():
                print(f"  {part:26} {number}")
        else:
            print(f"{key:28} {value}")


if __name__ == "__main__":
    main()
