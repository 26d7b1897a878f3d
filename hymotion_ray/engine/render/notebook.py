"""`hm.render`: prompts as Python strings through the same job, for notebooks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from hymotion_ray.config.fields import shown
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.extend import clip_bytes
from hymotion_ray.engine.render.job import run_job
from hymotion_ray.errors import ConfigError, SamplingError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.motions import decode_motion
from hymotion_ray.motion.motion import Motion


@dataclass(frozen=True)
class Rendered:
    """What `render` made: a folder, its summary and its motions, read when asked for."""

    out: str
    """The output folder."""
    summary: dict[str, Any]
    """What summary.json holds."""

    def rows(self) -> list[dict[str, Any]]:
        """The manifest's rows, in the order of the prompts and their seeds."""
        rows = [r for batch in read_batches(open_store(self.out)) for r in batch.to_pylist()]
        return sorted(rows, key=lambda r: (len(r["id"]), r["id"], r["seed"]))

    def __iter__(self) -> Iterator[Motion]:
        store = open_store(self.out)
        for row in self.rows():
            if row["status"] == "done":
                yield decode_motion(clip_bytes(store, row["file"]), "npz")

    @property
    def motions(self) -> list[Motion]:
        """All motions, in the order of the prompts and their seeds."""
        return list(self)

    def _repr_html_(self) -> str:
        page = open_store(self.out).read_bytes("index.html").decode()
        escaped = page.replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{escaped}" width="100%" height="560" frameborder="0"></iframe>'


def render(
    prompts: str | Sequence[str],
    model: str = "tiny",
    *,
    out: str | None = None,
    seeds: int | Sequence[int] = 1,
    duration: float | None = None,
    num_steps: int | None = None,
    guidance_scale: float | None = None,
    formats: Sequence[str] = ("npz",),
    address: str | None = None,
) -> Rendered:
    """Render sentences through Ray and return their motions.

    `prompts`: one sentence or several; `out`: the folder to keep them in (None: a new temporary
    one); `seeds`: how many clips a prompt, or which seeds; `duration` in seconds. The other
    arguments are those of `hymotion-ray render`. Raises `SamplingError` when a clip failed, and
    the errors of a render job.
    """
    sentences = [prompts] if isinstance(prompts, str) else _list("prompts", prompts, str)
    seed_list = [] if isinstance(seeds, int) else _list("seeds", seeds, Integral)
    wanted = _list("formats", formats, str)
    folder = out or tempfile.mkdtemp(prefix="hymotion-ray-render-")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "prompts.jsonl"
        lines = [
            json.dumps({"id": f"{number:05d}", "text": text})
            for number, text in enumerate(sentences, start=1)
        ]
        path.write_text("\n".join(lines), encoding="utf-8")
        report = run_job(
            RenderConfig(
                prompts=(str(path),),
                model=model,
                out=folder,
                num_seeds=seeds if isinstance(seeds, int) else 1,
                seed_list=tuple(int(seed) for seed in seed_list),
                duration=duration,
                num_steps=num_steps,
                guidance_scale=guidance_scale,
                formats=tuple(wanted),
                address=address,
            ),
            lambda line: print(line, file=sys.stderr),  # noqa: T201 - a notebook's own output
        )
    if report.failed or report.stopped or report.counts.rejected:
        first = report.counts.first_rejects
        why = report.stopped or (first[0].message if first else "see failures.jsonl")
        raise SamplingError(
            f"{report.failed} clips failed and {report.counts.rejected} prompts were rejected"
            f" ({why}); what is done lies in {folder}"
        )
    return Rendered(folder, report.to_mapping())


def _list(name: str, values: object, kind: type) -> list[Any]:
    """What was given as a list; `ConfigError` unless it holds things of `kind`."""
    is_many = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    listed = list(values) if is_many else [None]  # type: ignore[call-overload]
    if not all(isinstance(value, kind) for value in listed):
        words = "texts" if kind is str else "whole numbers"
        raise ConfigError(f"{name} is {shown(values)}; allowed: a list of {words}")
    return listed
