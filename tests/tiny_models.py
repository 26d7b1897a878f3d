"""Real Qwen3 and CLIP models and tokenizers of a few thousand weights, saved as model folders."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

CHAT_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{%- if enable_thinking is false -%}<think>\n\n</think>\n\n{%- endif -%}{%- endif -%}"
)
CORPUS = [
    "a person walks forward and then jumps up twice while waving the left arm",
    "someone is running fast, turns around and sits down on a chair",
    "system user The user describes how a human body moves. Attend to what each body part does",
    "the direction, the speed, the order and the manner of the movement.",
]
# how byte-level tokenizers of this family split text: contractions, words, single digits, signs
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
START, END = "<|startoftext|>", "<|endoftext|>"
CLIP_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def save_qwen3(
    folder: Path, *, hidden: int = 32, head_dim: int = 8, seed: int = 0, causal_lm: bool = True
) -> Path:
    """A Qwen3 model with its tokenizer; with an output head as the published checkpoints have."""
    from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3Model

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        BpeTrainer(
            vocab_size=360,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    wrapped = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        additional_special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    )
    wrapped.add_tokens(["<think>", "</think>"])
    wrapped.chat_template = CHAT_TEMPLATE
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=400,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        initializer_range=0.2,
    )
    model = (Qwen3ForCausalLM if causal_lm else Qwen3Model)(config)
    _save(model, wrapped, folder)
    return folder


def save_clip(folder: Path, *, hidden: int = 24, seed: int = 1) -> Path:
    """A CLIP model, text and image halves as the published folder has them, with its tokenizer."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizerFast

    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=END))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_SPLIT), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [*CORPUS, *map(chr, range(256))],  # so that every byte can end a word
        BpeTrainer(
            vocab_size=700,
            show_progress=False,
            end_of_word_suffix="</w>",
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[START, END],
        ),
    )
    start, end = (tokenizer.token_to_id(token) for token in (START, END))
    tokenizer.post_processor = processors.RobertaProcessing(
        (END, end), (START, start), add_prefix_space=False, trim_offsets=False
    )
    wrapped = CLIPTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START, eos_token=END, pad_token=END, unk_token=END
    )
    torch.manual_seed(seed)
    text = {
        "vocab_size": len(wrapped),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 77,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 8,
        "patch_size": 4,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    _save(model, wrapped, folder)
    return folder


def _save(model: torch.nn.Module, tokenizer: object, folder: Path) -> None:
    folder.mkdir(parents=True)
    with torch.no_grad():  # biases and norms start at constants that would hide mistakes
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
