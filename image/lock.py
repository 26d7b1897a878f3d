"""Lock files of the images: every package with the hash of its file. `make lock` runs it.

Writes, for Linux on x86-64 and the Python that runs it: requirements.lock (all but torch),
requirements-cpu.lock and requirements-cuda.lock (torch's two builds and what only they need). The
versions are those of constraints.txt; pip's own resolver (25 or newer: older ones download all of
torch for it) finds the files, nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPO = FOLDER.parent
EXTRAS = "text,train,serve,export"
HEAD = (
    "# Made by image/lock.py from constraints.txt, for Linux on x86-64 and Python {python}. "
    "Do not edit.\n"
    "# pip install --no-deps --require-hashes -r {name}\n"
)


def resolve(torch: str) -> dict[str, str]:
    """Lines `name==version --hash=...` by name, with torch in the build that is named."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
        *("--report", "-", "-c", str(REPO / "constraints.txt"), torch, f"{REPO}[{EXTRAS}]"),
    ]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = {}
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
        if name != "hymotion-ray":
            found[name] = f"{name}=={item['metadata']['version']} --hash=sha256:{hashes['sha256']}"
    return found


def write(name: str, lines: list[str]) -> None:
    """One lock file, sorted."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = HEAD.format(python=python, name=name) + "".join(f"{line}\n" for line in sorted(lines))
    (FOLDER / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Resolve twice and write what both have, and what each has alone."""
    pinned = re.search(r"^torch==(.+)$", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None, "constraints.txt pins torch"
    cpu = resolve(f"torch=={pinned[1]}+cpu")
    cuda = resolve(f"torch==={pinned[1]}")  # to the letter: `==` would take a +cpu build as well
    shared = {name for name in cpu if cuda.get(name) == cpu[name]}
    write("requirements.lock", [cpu[name] for name in shared])
    write("requirements-cpu.lock", [cpu[name] for name in set(cpu) - shared])
    write("requirements-cuda.lock", [cuda[name] for name in set(cuda) - shared])


if __name__ == "__main__":
    main()
