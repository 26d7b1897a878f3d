"""Fit the planner's constants to what `bench_memory.py` measured, and say how far off they are.

    python benchmarks/fit_planning.py benchmarks/results/memory-h200-DATE.json           report only
    python benchmarks/fit_planning.py benchmarks/results/memory-h200-DATE.json --write   refit

Records marked `fit` give the constants, those marked `check` the errors of the table. `--write`
replaces hymotion_ray/assets/fitted.json, which is the one place they live in, and then
docs/which-cards.md must be made again (`make_cards_page.py`). Memory is linear in its constants:
least squares of relative errors, none below zero, held lightly to what they were where the records
do not tell them apart.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.optimize import least_squares, nnls

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.fitted import Fitted, SamplingMemory, Speed, fitted
from hymotion_ray.planning.memory import GIB, MOTION_PHASE, TEXT_PHASE, sampling_terms
from hymotion_ray.planning.speed import sampling_seconds, training_seconds
from hymotion_ray.planning.training_memory import training_memory

from bench_memory import network_of  # isort: skip

ASSET = Path(__file__).parents[1] / "hymotion_ray" / "assets" / "fitted.json"
GOAL = 0.10
_HOLD = 0.02
"""Weight of staying where a constant was, against a relative error of 1."""
_ROUNDS = 8
Record = dict[str, Any]


def fit(document: dict[str, Any], source: str) -> Fitted:
    """New constants from the `fit` half of a results file.

    Those of training memory are counted by the trainer (`engine/train/fit.py`) and only checked,
    but for what comes to the count on the card.
    """
    tiny = document["tiny"]
    sampling = _good(document, "sampling", "fit")
    training = _good(document, "training", "fit")
    memory, kept, speed = fitted().memory, fitted().training, fitted().speed
    if sampling:
        contexts = [r["measured"].get("context", 0) for r in sampling]
        wanted = [_working_set(r) for r in sampling]
        totals = [_total(r) for r in sampling]
        start = memory
        for _ in range(_ROUNDS):  # which phase a record's peak lies in hangs on the constants
            rows = [_at_peak(_sampling_terms(r, tiny), memory) for r in sampling]
            memory = dataclasses.replace(start, **_linear(rows, wanted, totals, vars(start)))
        context = float(np.median(contexts)) / GIB or memory.context_gib
        memory = dataclasses.replace(memory, context_gib=context, source=source)
        speed = _fit_speed(sampling, speed, tiny, source)
    if training:
        spare = [r["measured"]["activations"] - _training_peak(r, tiny) for r in training]
        kept = dataclasses.replace(kept, spare_gib=float(f"{np.median(spare) / GIB:.3g}"))
        names = ["training_share", "training_launch_s", "training_recomputed"]
        speed = _fitted_to(training, speed, names, lambda r, s: _training_seconds(r, tiny, s))
    return Fitted(memory=memory, training=kept, speed=speed)


def _linear(
    rows: Sequence[dict[str, float]],
    wanted: Sequence[float],
    totals: Sequence[float],
    start: dict[str, Any],
) -> dict[str, float]:
    """Constants of the terms that occur, by relative error of the whole."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    matrix = [
        [row.get(n, 0.0) / total for n in names] for row, total in zip(rows, totals, strict=True)
    ]
    goal = [want / total for want, total in zip(wanted, totals, strict=True)]
    for place, name in enumerate(names):
        # A constant of zero is held to a small one.
        scale = _HOLD / max(float(start[name]), 0.1)
        matrix.append([scale * (i == place) for i in range(len(names))])
        goal.append(scale * float(start[name]))
    found, _ = nnls(np.array(matrix), np.array(goal))
    return {name: float(f"{value:.4g}") for name, value in zip(names, found, strict=True)}


def _fit_speed(records: Sequence[Record], start: Speed, tiny: bool, source: str) -> Speed:
    names = ["bytes_a_flop", "text_factor", "launch_s", "text_launch_s"]
    names += ["clip_s", "float32_factor"]
    found = _fitted_to(records, start, names, lambda r, s: _seconds(r, tiny, s))
    return dataclasses.replace(found, source=f"{source} and text_encoder_h200.jsonl")


def _fitted_to(
    records: Sequence[Record],
    start: Speed,
    names: Sequence[str],
    predict: Callable[[Record, Speed], float],
) -> Speed:
    """`start` with the constants `names` by relative error of `records`' seconds."""
    first = np.log([max(float(getattr(start, n)), 1e-5) for n in names])

    def made(logs: np.ndarray) -> Speed:
        return dataclasses.replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def errors(logs: np.ndarray) -> np.ndarray:
        speed = made(logs)
        relative = [predict(r, speed) / r["measured"]["seconds"] - 1 for r in records]
        return np.concatenate([relative, 0.02 * (logs - first)])

    found = made(least_squares(errors, first, loss="soft_l1").x)
    rounded = {n: float(f"{getattr(found, n):.4g}") for n in names}
    return dataclasses.replace(start, **rounded)


def _training_seconds(record: Record, tiny: bool, speed: Speed) -> float:
    given = record["inputs"]
    return training_seconds(
        network_of(given["model"], tiny),
        load_catalogue().gpu("H200"),
        ParallelConfig(gradient_checkpointing=bool(given.get("gradient_checkpointing"))),
        rows=given["rows"],
        num_frames=given["num_frames"],
        num_tokens=given["num_tokens"],
        constants=speed,
    )


def _seconds(record: Record, tiny: bool, speed: Speed) -> float:
    given = record["inputs"]
    return sampling_seconds(
        network_of(given["model"], tiny),
        load_catalogue().gpu("H200"),
        rows=given["rows"],
        num_frames=given["num_frames"],
        num_tokens=given["num_tokens"],
        seeds=given["seeds"],
        evaluations=given["num_steps"],
        null_evaluations=None if given["guidance"] else 0,
        precision=given["precision"],
        constants=speed,
        text_rows=given["text_rows"],
    )


def _sampling_terms(record: Record, tiny: bool) -> dict[str, float]:
    given = record["inputs"]
    return sampling_terms(
        network_of(given["model"], tiny),
        rows=given["rows"],
        num_frames=given["num_frames"],
        num_tokens=given["num_tokens"],
        seeds=given["seeds"],
        num_steps=given["num_steps"],
        guidance=given["guidance"],
        precision=given["precision"],
        window_bytes=given["window_mib"] * 2**20,
        text_rows=given["text_rows"],
    )


def _at_peak(terms: dict[str, float], memory: SamplingMemory) -> dict[str, float]:
    """The terms without those of the phase that takes less."""

    def size(phase: tuple[str, ...]) -> float:
        return sum(getattr(memory, name) * terms[name] for name in phase)

    less = MOTION_PHASE if size(TEXT_PHASE) > size(MOTION_PHASE) else TEXT_PHASE
    return {name: term for name, term in terms.items() if name not in less}


def _training_peak(record: Record, tiny: bool) -> float:
    """What a step takes beside weights, gradients, moments and mean, without the spare."""
    given = record["inputs"]
    switches = {
        name: given[name]
        for name in ("attention", "gradient_checkpointing", "lora_rank")
        if name in given
    }
    memory = training_memory(
        network_of(given["model"], tiny),
        ParallelConfig(precision="bfloat16", **switches),
        rows=given["rows"],
        num_frames=given["num_frames"],
        num_tokens=given["num_tokens"],
    )
    return float(memory.activations)


def _good(document: dict[str, Any], kind: str, half: str | None = None) -> list[Record]:
    return [
        r
        for r in document["records"]
        if r["kind"] == kind and "error" not in r and half in (None, r["half"])
    ]


def _total(record: Record) -> float:
    return float(record["measured"]["total"])


def _working_set(record: Record) -> float:
    """All but weights and CUDA's context."""
    measured = record["measured"]
    return float(measured["total"] - measured.get("context", 0) - measured["weights"])


def report(document: dict[str, Any], constants: Fitted) -> str:
    """Markdown: errors of both halves, then each record, then the capped cards."""
    tiny = document["tiny"]
    lines = [
        "| what | records | median error | 90 % of errors below | largest |",
        "| --- | --- | --- | --- | --- |",
    ]
    kinds: list[tuple[str, str, Callable[[Record], float]]] = [
        ("memory of sampling", "sampling", lambda r: _sampling_error(r, tiny, constants.memory)),
        ("time of sampling", "sampling", lambda r: _time_error(r, tiny, constants.speed)),
        ("memory of training", "training", lambda r: _training_error(r, tiny, constants)),
        ("time of training", "training", lambda r: _training_time_error(r, tiny, constants.speed)),
    ]
    for words, kind, error in kinds:
        for half in ("fit", "check"):
            found = [abs(error(r)) for r in _good(document, kind, half)]
            if found:
                name = "fitted on" if half == "fit" else "**checked on**"
                cells = [np.median(found), np.quantile(found, 0.9), max(found)]
                percents = " | ".join(f"{100 * c:.1f} %" for c in cells)
                lines.append(f"| {words}, {name} | {len(found)} | {percents} |")
    lines += ["", *_sampling_rows(document, constants), "", *_card_rows(document)]
    failed = [r for r in document["records"] if "error" in r and r["kind"] != "capped"]
    lines += [f"failed: {r['kind']} {r['inputs']}: {r['error']}" for r in failed]
    return "\n".join(lines)


def _sampling_error(record: Record, tiny: bool, memory: SamplingMemory) -> float:
    return _predicted(record, tiny, memory) / _total(record) - 1


def _predicted(record: Record, tiny: bool, memory: SamplingMemory) -> float:
    terms = _sampling_terms(record, tiny)
    at_peak = _at_peak(terms, memory)
    working = sum(vars(memory)[name] * term for name, term in at_peak.items())
    context = memory.context_gib * GIB if record["measured"].get("context") else 0
    return float(working + record["measured"]["weights"] + context)


def _time_error(record: Record, tiny: bool, speed: Speed) -> float:
    return _seconds(record, tiny, speed) / float(record["measured"]["seconds"]) - 1


def _training_error(record: Record, tiny: bool, constants: Fitted) -> float:
    measured = record["measured"]
    peak = _training_peak(record, tiny) + constants.training.spare_gib * GIB
    return float((peak - measured["activations"]) / measured["total"])


def _training_time_error(record: Record, tiny: bool, speed: Speed) -> float:
    return _training_seconds(record, tiny, speed) / float(record["measured"]["seconds"]) - 1


def _sampling_rows(document: dict[str, Any], constants: Fitted) -> list[str]:
    tiny = document["tiny"]
    lines = [
        "| half | model | precision | rows x frames x tokens | seeds | window MiB | guidance |"
        " GiB | predicted | reserved | clips/s | predicted |",
        "|" + " --- |" * 12,
    ]
    for r in _good(document, "sampling"):
        given, measured = r["inputs"], r["measured"]
        cell = f"{given['rows']} x {given['num_frames']} x {given['num_tokens']}"
        rate = given["rows"] / _seconds(r, tiny, constants.speed)
        cells = [
            r["half"], given["model"], given["precision"], cell, given["seeds"],
            given["window_mib"], "yes" if given["guidance"] else "no",
            f"{_total(r) / GIB:.2f}", f"{_predicted(r, tiny, constants.memory) / GIB:.2f}",
            f"{measured.get('peak_reserved', 0) / GIB:.2f}",
            f"{measured['clips_per_s']:.1f}", f"{rate:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _card_rows(document: dict[str, Any]) -> list[str]:
    lines = [
        "| preset | model | rows x frames x tokens | sampler may take, GiB | took | ran |",
        "|" + " --- |" * 6,
    ]
    for r in document["records"]:
        if r["kind"] != "capped":
            continue
        given, preset = r["inputs"], r["inputs"]["preset"]
        cell = f"{given['rows']} x {given['num_frames']} x {given['num_tokens']}"
        took = f"{_total(r) / GIB:.2f}" if "measured" in r else "-"
        ran = r.get("error", r.get("verdict", "yes"))
        room = f"{preset['sampler_bytes'] / GIB:.2f}"
        lines.append(f"| {preset['name']} | {given['model']} | {cell} | {room} | {took} | {ran} |")
    return lines if len(lines) > 2 else []


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--write", is_flag=True, help="Replace hymotion_ray/assets/fitted.json.")
def main(results: Path, write: bool) -> None:
    """Print the errors of refitted constants, and of today's on the same records."""
    document = json.loads(results.read_text("utf-8"))
    source = f"benchmarks/results/{results.name}"
    constants = fit(document, source)
    click.echo(f"Refitted on {source}\n\n{report(document, constants)}")
    mapping = {"schema": 1, **dataclasses.asdict(constants)}
    text = json.dumps(mapping, indent=1) + "\n"
    if write:
        if document["tiny"]:
            raise click.ClickException("the file holds a trial of tiny networks; nothing written")
        ASSET.write_text(text, encoding="utf-8")
        click.echo(f"\nwrote {ASSET}; now run python benchmarks/make_cards_page.py")
    else:
        click.echo(f"\n{text}")


if __name__ == "__main__":
    main()
