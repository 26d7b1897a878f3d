"""Memory of one rank of a training run, for any switches. Knows shapes, no tensors.

The one formula of it: the planner reckons what a pass keeps from fitted constants, the trainer
(`engine/train/fit.py`) counts that on tensors without content and gives it in.

Letters: B rows, S tokens a row (frames and text), D width, H heads.
"""

from __future__ import annotations

from hymotion_ray.config.fields import require
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import SHARDED, ParallelConfig
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB, ITEM_BYTES, Memory
from hymotion_ray.planning.parameters import count_adapters, count_parameters, largest_block

_FLOAT32 = 4
_MOMENTS = 2
"""Of AdamW, a weight."""


def training_memory(
    config: NetworkConfig,
    switches: ParallelConfig,
    *,
    rows: int,
    num_frames: int = 360,
    num_tokens: int = 36,
    num_ranks: int = 1,
    num_trained: int | None = None,
    kept_bytes: int | None = None,
) -> Memory:
    """One rank at its fullest, in a step of `rows` clips.

    Weights, trained and frozen, their gradients, AdamW's moments and the running mean are float32;
    `precision` is that of products. zero2 gathers all weights for a pass, zero3 two blocks', and
    both have the gradients of two blocks on their way. Where a pass keeps little, an H200 still
    showed a peak of one more copy of the trained weights; what takes it is not found.
    `num_trained` counts the trained weights (None: all, or those of adapters), `kept_bytes` what a
    pass keeps for its backward (None: reckoned).
    """
    require(rows >= 1, "rows", rows, "at least 1")
    weights = count_parameters(config)
    adapters = count_adapters(config, switches.lora_rank)
    trained = num_trained if num_trained is not None else adapters or weights
    sharded = switches.strategy in SHARDED
    part = num_ranks if sharded else 1
    moments = 1 if switches.strategy == "ddp" else num_ranks
    largest = largest_block(config)
    gathered = {"zero2": weights + 2 * largest, "zero3": 4 * largest}.get(switches.strategy, 0)
    if kept_bytes is None:
        kept_bytes = reckoned_bytes(
            config, switches, rows=rows, num_frames=num_frames, num_tokens=num_tokens
        )
    least = _FLOAT32 * trained // moments
    return Memory(
        weights=_FLOAT32 * ((weights + adapters) // part + (gathered if num_ranks > 1 else 0)),
        gradients=_FLOAT32 * trained // part,
        optimizer=_FLOAT32 * (_MOMENTS * trained // moments + trained // part),
        activations=max(kept_bytes, least),
        workspace=int(fitted().training.spare_gib * GIB),
        context=int(fitted().memory.context_gib * GIB),
    )


def reckoned_bytes(
    config: NetworkConfig,
    switches: ParallelConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
) -> int:
    """Bytes that a forward pass keeps, and of one block again where blocks are computed twice."""
    terms = training_terms(
        config, switches, rows=rows, num_frames=num_frames, num_tokens=num_tokens
    )
    constants = vars(fitted().training)
    return int(sum(constants[name] * term for name, term in terms.items()))


def training_terms(
    config: NetworkConfig,
    switches: ParallelConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
) -> dict[str, float]:
    """What each fitted constant of `TrainingMemory` is multiplied by, in bytes."""
    item = ITEM_BYTES[switches.precision]
    is_low, is_frozen = item < _FLOAT32, switches.lora_rank > 0
    S = num_frames + num_tokens
    widths = rows * S * config.feat_dim * item
    scores = rows * config.num_heads * S * S * item
    layers = 1 if switches.gradient_checkpointing else config.num_layers
    kind = "" if is_low else "_float32"
    saved = "saved_widths_frozen" if is_low and is_frozen else f"saved_widths{kind}"
    terms: dict[str, float] = {saved: layers * widths}
    if switches.attention == "dense":  # band attention keeps no scores
        terms[f"saved_scores{kind}"] = layers * scores
    if switches.gradient_checkpointing:
        terms["kept_widths"] = config.num_layers * rows * S * config.feat_dim * 2
    if is_low:
        copies = 2 * count_parameters(config)
        if switches.gradient_checkpointing:
            terms |= {} if is_frozen else {"cast_outside": copies}
        else:
            terms["cast_frozen" if is_frozen else "cast_trained"] = copies
    return terms
