"""Write docs/which-cards.md from the planner, so that the page never says what `plan` does not.

python benchmarks/make_cards_page.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hymotion_ray.config.releases import released_network
from hymotion_ray.planning.catalogue import Catalogue, load_catalogue
from hymotion_ray.planning.layouts import PUBLIC_LAYOUTS
from hymotion_ray.planning.memory import GIB, encoder_memory, sampling_memory
from hymotion_ray.planning.plan import Plan, Request, make_plan, parse_gpus
from hymotion_ray.planning.speed import sampling_rate
from hymotion_ray.planning.split_plan import layout_plan
from hymotion_ray.planning.training import fits

PAGE = Path(__file__).parents[1] / "docs" / "which-cards.md"

_HEAD = """# Which cards for whom

Made by `python benchmarks/make_cards_page.py` from the same figures as `hymotion-ray plan`; the
catalogue of cards and prices is of {date}. **Computed** from shapes, from rates measured on one
H200 (`benchmarks/results/`) and from data sheets: no card here but the H200 was at hand. Clips are
5 s, 50 steps, guidance 5, one seed a prompt; "encoder" is Qwen3-8B with CLIP-L.
Plans use 92 % of what CUDA reports of a card; what the training switches are:
[training switches](training-switches.md).

Ask for your own pool: `hymotion-ray plan --gpus A10:4,A100-40:2 --model 1.0 --clips 100000`.
"""
_LAYOUTS = """
## Public advice beside a plan

Public advice for this model family is a table of guesses. Our samplers hold a whole copy each: the
network takes 1.9 GiB (lite: 0.9), so that splitting it over cards of 10 GB and more only adds
waiting. One clip is limited by the start of its kernels, not by the card.

"""
_SPLITS = """
## The advised layouts as presets

The same pools in the advised way, half the network a card where that is the advice. To run one:
`hymotion-ray plan --layout 8xA10 --json > plan.json`, then `hymotion-ray render` with
`--plan plan.json`. Links between cards are reckoned at 12 GB/s, half of PCI Express 4.0 x16;
nothing here is measured.

"""
_CARDS = """
## One card

Seeds a pass and clip length are limited by nothing but the batch: a larger request runs in more
batches. Prompts over about 30 words take a larger token cell and more memory; the planner reckons
with 36 tokens.

"""
_PUBLIC = """
## The public 26 and 24 GB

The released tool is said to need a card of 26 GB (lite: 24) for one seed, a prompt of at most 30
words and 5 s. The same clip here, GiB by stage, encoder and sampler resident on one card:

"""
_TRAINING = """
## Training

Clips of 12 s, mixed precision, AdamW, running mean of the weights on the card: the clips a step
and card that fit, up to 32; `-` where not one does (or where there is nothing to split).

"""


def page(catalogue: Catalogue) -> str:
    """The whole page."""
    parts = [
        _HEAD.format(date=catalogue.date),
        _LAYOUTS,
        _table(_layout_rows(catalogue)),
        _SPLITS,
        _table(_split_rows(catalogue)),
        _CARDS,
        _table(_card_rows(catalogue)),
        _PUBLIC,
        _table(_public_rows()),
        _TRAINING,
        _table(_training_rows(catalogue)),
    ]
    return "".join(parts)


def _plan(gpus: str, model: str, catalogue: Catalogue) -> Plan:
    request = Request(
        network=released_network(model), model_name=model, gpus=parse_gpus(gpus, catalogue)
    )
    return make_plan(request, catalogue)


def _layout_rows(catalogue: Catalogue) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("pool", "model", "advised layout", "advised s a clip", "advised GB a card",
         "plan", "s for one clip", "GiB a card", "clips/s"),
    ]  # fmt: skip
    for layout in PUBLIC_LAYOUTS:
        made = _plan(layout.gpus, layout.model, catalogue)
        best = made.arrangement
        gpu = best.samplers[0].gpu
        one = 1 / sampling_rate(made.request.network, gpu, rows=1, num_frames=150, num_tokens=36)
        taken = sorted(
            (s.memory.total + (best.encoder_memory.total if s.share < 1 else 0)) / GIB
            for s in best.samplers
        )
        span = " and ".join(dict.fromkeys(f"{size:.1f}" for size in taken))
        rows.append(
            (layout.gpus, layout.model, layout.said_layout, layout.said_clip_s,
             layout.said_gb_a_card, best.reason, f"{one:.1f}", span, f"{best.clips_per_s:.1f}"),
        )  # fmt: skip
    return rows


def _split_rows(catalogue: Catalogue) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("--layout", "model", "samplers", "encoder", "clips a batch", "batches in flight",
         "GB a process", "advised GB a card", "clips/s"),
    ]  # fmt: skip
    for layout in PUBLIC_LAYOUTS:
        request = Request(
            network=released_network(layout.model), model_name=layout.model,
            gpus=parse_gpus(layout.gpus, catalogue),
        )  # fmt: skip
        made = layout_plan(layout, request, catalogue)
        encode = next(row for row in made["placement"] if row["stage"] == "encode")
        samplers = [row for row in made["placement"] if row["stage"] == "sample"]
        number = sum(row["number"] for row in samplers)
        words = f"{number} x {layout.split}" if layout.split else f"{number}, a copy a card"
        rows.append(
            (layout.name, layout.model, words, f"{encode['gpu']} ({encode['share']:g})",
             str(min(row["rows"] for row in samplers)), str(samplers[0].get("in_flight", 1)),
             f"{made['layout']['gb_a_card']:.1f}", layout.said_gb_a_card,
             f"{made['clips_per_s']:.1f}"),
        )  # fmt: skip
    return rows


def _card_rows(catalogue: Catalogue) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("card", "model", "encoder", "clips a batch", "clips/s", "USD per 1,000 clips"),
    ]
    for kind in catalogue.gpus:
        for model in ("1.0", "lite"):
            made = _plan(kind, model, catalogue)
            best = made.arrangement
            prices = [
                row["usd_per_1000_clips"]
                for row in made.alternatives
                if row["gpu"] == f"1 x {kind}"
            ]
            rows.append(
                (kind, model, best.encoder_place, str(best.samplers[0].rows),
                 f"{best.clips_per_s:.2f}", f"{min(prices):.3f}" if prices else "-"),
            )  # fmt: skip
    return rows


def _public_rows() -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("model", "said, GB of a card", "encoder", "sampler, one clip", "both, end to end"),
    ]
    for model, said in (("1.0", "26"), ("lite", "24")):
        sampler = sampling_memory(
            released_network(model), rows=1, num_frames=150, num_tokens=48, card_bytes=24 * GIB
        )
        sizes = [encoder_memory().total, sampler.total]
        rows.append((model, said, *(f"{size / GIB:.1f}" for size in (*sizes, sum(sizes)))))
    return rows


def _training_rows(catalogue: Catalogue) -> list[Sequence[str]]:
    wanted = [
        ("ddp", "ddp"),
        ("zero1", "zero1"),
        ("zero2", "zero2"),
        ("zero3", "zero3"),
        ("ddp, gradient checkpointing", "ddp + checkpointing"),
        ("zero3, gradient checkpointing", "zero3 + checkpointing"),
        ("ddp, gradient checkpointing, LoRA", "LoRA + checkpointing"),
    ]
    rows: list[Sequence[str]] = [("cards", "model", *(title for _, title in wanted))]
    for kind in ("A10", "RTX4090", "A100-40", "A100-80", "H200"):
        for number in (1, 8):
            for model in ("1.0", "lite"):
                found = fits(released_network(model), catalogue.gpu(kind), number)
                by_words = {fit.switches.words: str(fit.rows) for fit in found}
                cells = [by_words.get(words, "-") for words, _ in wanted]
                rows.append((f"{number} x {kind}", model, *cells))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |\n" for row in rows]
    return head + "|" + " --- |" * len(rows[0]) + "\n" + "".join(body)


if __name__ == "__main__":
    PAGE.write_text(page(load_catalogue()), encoding="utf-8")
    print(PAGE)
