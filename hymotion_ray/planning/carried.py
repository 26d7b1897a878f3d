"""A plan that a run carries out: read from a file of `plan --json`, checked, set beside the facts.

Knows the plan's JSON form and what a run says of itself; no cluster and no model files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.errors import ClusterError, ConfigError, InputError
from hymotion_ray.planning.memory import GIB

SCHEMA = 2
Work = Literal["render", "train"]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a run, from a plan file or from a plan that the run made itself."""

    source: str
    """The file, or how it was made."""
    clips_per_s: float
    start_s: float
    """Seconds until work begins: processes, weights."""
    memory_gib: float | None = None
    """Of the fullest process, without CUDA's context; None: not known."""
    usd_per_hour: float | None = None
    """Of the whole pool; None: no price is known."""

    def beside(
        self,
        *,
        clips: int,
        seconds: float,
        memory_bytes: int | None,
        start_s: float | None = None,
    ) -> dict[str, Any]:
        """Predicted and actual of a run that computed `clips`, JSON-ready.

        `seconds` in all, `start_s` of them until the first process was ready (None: not known);
        `memory_bytes` of the fullest process at its peak, as torch or the system counted it.
        """
        work = clips / self.clips_per_s if clips else None
        took = None if work is None else self.start_s + work
        actual = memory_bytes / GIB if memory_bytes else None
        price = self.usd_per_hour
        return {
            "source": self.source,
            "seconds": _pair(took, seconds, 1),
            "work_s": _pair(work, None if start_s is None else seconds - start_s, 1),
            "memory_gib": _pair(self.memory_gib, actual, 2),
            "cost_usd": _pair(
                None if price is None or took is None else price * took / 3600,
                None if price is None else price * seconds / 3600,
                4,
            ),
        }


def words_beside(beside: Mapping[str, Any]) -> str:
    """One line: what was planned and what it was."""
    parts = [
        _words(beside["seconds"], "s"),
        _words(beside["work_s"], "s without the start"),
        _words(beside["memory_gib"], "GiB a process"),
        _words(beside["cost_usd"], "USD"),
    ]
    return f"planned and actual ({beside['source']}): " + ", ".join(filter(None, parts))


def _pair(predicted: float | None, actual: float | None, digits: int) -> dict[str, float | None]:
    return {
        name: None if value is None else round(value, digits)
        for name, value in (("predicted", predicted), ("actual", actual))
    }


def _words(pair: Mapping[str, float | None], unit: str) -> str | None:
    if pair["predicted"] is None or pair["actual"] is None:
        return None
    return f"{pair['predicted']:g} and {pair['actual']:g} {unit}"


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """What a plan file says."""

    path: str
    work: Work
    network: Mapping[str, int]
    """Width, layers and heads of the network that was planned for."""
    gpus: Mapping[str, int]
    """Cards by the catalogue's names."""
    settings: Mapping[str, Any]
    """Settings of the command that carry the plan out."""
    expected: Expected
    reasons: Sequence[str] = field(default=())

    def require_model(self, network: NetworkConfig) -> None:
        """Raise `ConfigError` where the plan was made for another network."""
        own = shape_of(network)
        if dict(self.network) != own:
            raise ConfigError(
                f"{self.path} is a plan for a network of {_shape_words(self.network)}, and the "
                f"model is one of {_shape_words(own)}; allowed: a plan made with --model set to "
                "this model's folder, or no --plan"
            )

    def require_pool(self, pool: Mapping[str, int]) -> None:
        """Raise `ClusterError` where the cluster lacks cards of the plan.

        `pool` are the cluster's cards by the catalogue's names, others by their own.
        """
        lacking = {kind: number for kind, number in self.gpus.items() if pool.get(kind, 0) < number}
        if not lacking:
            return
        has = _pool_words(pool) if pool else "no GPU"
        again = (
            f" plan for it: hymotion-ray plan --gpus {_pool_option(pool)} ... --json"
            if pool
            else " or leave --plan out to run on CPUs"
        )
        raise ClusterError(
            f"{self.path} needs {_pool_words(self.gpus)} and the cluster has {has}; wait for the "
            f"other nodes,{again}"
        )

    def assignments(self) -> list[str]:
        """The settings as `section.field=value`."""
        return [f"{name}={json.dumps(value)}" for name, value in self.settings.items()]


def shape_of(network: NetworkConfig) -> dict[str, int]:
    """What tells one network from another in a plan."""
    return {
        "feat_dim": network.feat_dim,
        "num_layers": network.num_layers,
        "num_heads": network.num_heads,
    }


def read_plan(path: str, work: Work) -> PlanFile:
    """The plan in the file at `path`; `InputError` or `ConfigError` where it is none to `work`."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"plan {path} cannot be read ({error})") from error
    return parse_plan(text, path, work)


def parse_plan(text: str, path: str, work: Work) -> PlanFile:
    """The plan in `text`, read from `path`, for a command that does `work`.

    Raises `ConfigError` for what is no plan, of another schema, or for other work.
    """
    wanted = "a file that `hymotion-ray plan --json` wrote"
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"plan {path} is no JSON ({error}); allowed: {wanted}") from error
    if not isinstance(plan, dict) or plan.get("schema") != SCHEMA:
        found = plan.get("schema") if isinstance(plan, dict) else type(plan).__name__
        raise ConfigError(
            f"plan {path} has schema {found!r:.60}; allowed: {SCHEMA}, as in {wanted}"
        )
    try:
        made = PlanFile(
            path=path,
            work=plan["work"],
            network={name: int(n) for name, n in plan["network"].items()},
            gpus={kind: int(number) for kind, number in plan["gpus"].items()},
            settings=dict(plan["settings"]),
            expected=_expected(plan, path),
            reasons=tuple(map(str, plan["reasons"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(
            f"plan {path} cannot be read ({type(error).__name__}: {error}); allowed: {wanted}"
        ) from error
    if made.work != work:
        flag = "with --train" if work == "train" else "without --train"
        raise ConfigError(
            f"plan {path} is one to {made.work}; allowed here: one to {work}, made {flag}"
        )
    return made


def _expected(plan: Mapping[str, Any], path: str) -> Expected:
    rate = float(plan["clips_per_s"])
    if not 0 < rate < float("inf"):
        raise ValueError(f"clips_per_s is {rate}")
    fullest = [
        row["gib"]["total"] - row["gib"].get("context", 0.0)
        for row in plan["memory"]
        if row["stage"] in ("sample", "train")
    ]
    machines = plan["cost"]["machines"]
    is_priced = plan["cost"]["usd"] is not None
    per_hour = sum(float(m["number"]) * float(m["usd_per_hour"]) for m in machines)
    return Expected(
        source=path,
        clips_per_s=rate,
        start_s=float(plan["start_s"]),
        memory_gib=float(max(fullest)) if fullest else None,
        usd_per_hour=per_hour if is_priced else None,
    )


def _shape_words(shape: Mapping[str, int]) -> str:
    names = ("feat_dim", "num_layers", "num_heads")
    return ", ".join(f"{name} {shape.get(name)}" for name in names)


def _pool_words(pool: Mapping[str, int]) -> str:
    return " and ".join(f"{number} x {kind}" for kind, number in pool.items())


def _pool_option(pool: Mapping[str, int]) -> str:
    return ",".join(f"{re.sub(r'[^A-Za-z0-9-]+', '-', kind)}:{n}" for kind, n in pool.items())
