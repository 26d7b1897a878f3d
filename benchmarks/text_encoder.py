"""How fast is the context encoder at full size, and do a prompt's bits depend on its mates?

    python benchmarks/text_encoder.py --device cuda

Random weights in the shape of Qwen3-8B (`--layers` makes it smaller), 101 prefix tokens as the
released template has, prompts of 8 to 40 tokens. Compared with the plain way: the whole chat for
every prompt, padded to the longest possible. Loading, CLIP and tokenising are not measured.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import torch
from transformers import Qwen3Config, Qwen3Model

from hymotion_ray.text.context_model import ContextModel

PREFIX_TOKENS = 101
MAX_TOKENS = 128


def main() -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    args = parser.parse_args()
    model = random_model(args.device, args.layers)
    chooser = random.Random(0)
    prefix = [chooser.randrange(150_000) for _ in range(PREFIX_TOKENS)]
    prompts = [
        [chooser.randrange(150_000) for _ in range(chooser.randint(8, 40))]
        for _ in range(args.prompts)
    ]
    report(device=device_name(args.device), layers=args.layers, prompts=args.prompts)
    encoder = ContextModel(model, prefix, rows=1, max_tokens=MAX_TOKENS)
    for rows in args.rows:
        encoder = ContextModel(model, prefix, rows=rows, max_tokens=MAX_TOKENS)
        encoder.features(prompts[:rows])
        seconds, features = timed(lambda: encoder.features(prompts))  # noqa: B023 - called at once
        report(way="shared prefix", rows=rows, prompts_per_s=round(args.prompts / seconds, 1))
        alone = [encoder.features([prompt])[0] for prompt in prompts[:16]]
        same = all(torch.equal(a, b) for a, b in zip(alone, features[:16], strict=True))
        report(rows=rows, bits_same_alone_and_together=same)
    seconds, plain = timed(lambda: whole_chats(model, prefix, prompts, rows=args.rows[-1]))
    report(way="whole chat", rows=args.rows[-1], prompts_per_s=round(args.prompts / seconds, 1))
    errors = [
        float((a.float() - b.float()).norm() / b.float().norm())
        for a, b in zip(features, plain, strict=True)
    ]
    report(relative_difference_of_the_ways=max(errors))
    if args.device != "cpu":
        report(peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1))


def random_model(device: str, layers: int) -> Qwen3Model:
    """A model of Qwen3-8B's shape with random weights, made on the device."""
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rope_theta=1e6,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device != "cpu" else torch.float32)
    try:
        with torch.device(device):
            return Qwen3Model(config).eval()
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def whole_chats(
    model: Qwen3Model, prefix: list[int], prompts: list[list[int]], rows: int
) -> list[torch.Tensor]:
    """Features the plain way, in batches of `rows` chats padded to prefix + `MAX_TOKENS`."""
    features = []
    for start in range(0, len(prompts), rows):
        batch = prompts[start : start + rows]
        ids = torch.zeros(len(batch), PREFIX_TOKENS + MAX_TOKENS, dtype=torch.int64)
        for i, prompt in enumerate(batch):
            ids[i, : PREFIX_TOKENS + len(prompt)] = torch.tensor(prefix + prompt)
        hidden = model(input_ids=ids.to(model.device)).last_hidden_state
        features += [hidden[i, PREFIX_TOKENS:][: len(p)].clone() for i, p in enumerate(batch)]
    return features


def timed(work: Callable[[], list[torch.Tensor]]) -> tuple[float, list[torch.Tensor]]:
    """Seconds that `work` takes, and its result; done when the device is."""
    start = time.perf_counter()
    result = work()
    result[-1].sum().item()
    return time.perf_counter() - start, result


def device_name(device: str) -> str:
    """Name of the device for the report."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"


def report(**numbers: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    main()
