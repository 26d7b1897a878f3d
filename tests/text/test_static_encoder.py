"""The built-in encoder: near meanings are near, a text's bits are its own, damage is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from hymotion_ray.config import TextConfig
from hymotion_ray.errors import TextEncoderError
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.text.encoder import TextEncoder
from hymotion_ray.text.load import encoder_fingerprint, load_encoder, load_token_counter
from hymotion_ray.text.static import FILES, StaticEncoder

ASSETS = model_folder("tiny")
STATIC = TextConfig(kind="static")
TEXTS = ["a person walks forward", "jump", "", "走路", "kick " * 300, "A person WALKS  forward!"]


@pytest.fixture(scope="module")
def static() -> TextEncoder:
    return load_encoder(STATIC, ASSETS)


def cosine(encoder: TextEncoder, first: str, second: str) -> float:
    vector = encoder.encode([first, second]).vector[:, 0]
    return float(torch.cosine_similarity(vector[0], vector[1], dim=0))


@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        ("a person walks forward", "someone is walking ahead", "a person jumps up"),
        ("kicks", "kicking", "waves"),
        ("a person sits down on a chair", "taking a seat", "a person stands up"),
        ("a man throws a ball", "tossing a ball", "a man lies down"),
        ("turning left", "a person turns to the left", "a person turns to the right"),
        ("crouches", "a person crouches down", "stretches"),
    ],
)
def test_near_meanings_are_nearer(static, text, same, other):
    assert cosine(static, text, same) > cosine(static, text, other) + 0.1


def test_words_of_movement_are_one_piece(static):
    words = [
        "backflip",
        "cartwheel",
        "crouches",
        "sneaks",
        "jogs",
        "twirling",
        "somersault",
        "anticlockwise",
    ]
    assert static.count_tokens(words) == [1] * len(words)


def test_a_text_has_the_same_bits_with_any_mates(static):
    together = static.encode(TEXTS)
    for i, text in enumerate(TEXTS):
        alone = static.encode([text])
        num = int(together.length[i])
        assert int(alone.length) == num
        assert torch.equal(alone.context[0], together.context[i, :num])
        assert torch.equal(alone.vector[0], together.vector[i])
        assert not together.context[i, num:].any()


def test_lengths_and_truncation_are_told(static):
    condition = static.encode(TEXTS)
    assert condition.length.tolist() == [4, 1, 1, 2, 128, 5]
    assert static.count_tokens(TEXTS) == condition.length.tolist()
    assert condition.truncated == (False, False, False, False, True, False)
    assert condition.truncation(4) == "context,vector"


def test_every_feature_is_finite_and_words_have_unit_scale(static):
    condition = static.encode(TEXTS)
    assert torch.isfinite(condition.context).all()
    scale = condition.vector.square().mean(-1).sqrt().flatten()
    assert scale[[0, 1, 4, 5]] == pytest.approx(1, abs=1e-5)
    assert scale[[2, 3]].tolist() == [0, 0]  # no known word: no direction


def test_no_texts_give_an_empty_condition(static):
    condition = static.encode([])
    assert (condition.context.shape, condition.vector.shape) == ((0, 0, 96), (0, 1, 96))


def test_order_shows_in_the_context_only(static):
    condition = static.encode(["left arm right leg", "right arm left leg"])
    assert torch.allclose(condition.vector[0], condition.vector[1], atol=1e-6)
    assert not torch.allclose(condition.context[0, 1], condition.context[1, 1], atol=1e-2)


def test_counter_and_fingerprint_need_no_vectors_loaded(static):
    counter = load_token_counter(STATIC, ASSETS)
    assert not isinstance(counter, StaticEncoder)
    assert counter.count_tokens(TEXTS) == static.count_tokens(TEXTS)
    assert encoder_fingerprint(STATIC, ASSETS) == static.fingerprint
    shorter = TextConfig(kind="static", max_context_tokens=64)
    assert encoder_fingerprint(shorter, ASSETS) != static.fingerprint


def test_wrong_width_names_both():
    with pytest.raises(TextEncoderError, match=r"96 wide.*4096"):
        load_encoder(STATIC, ASSETS, expected_context_dim=4096)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name):
    folder = tmp_path / "text"
    shutil.copytree(ASSETS / "text", folder)
    (folder / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(TextEncoderError, match=name.replace(".", r"\.")):
        load_encoder(STATIC, tmp_path)
    (folder / name).unlink()
    with pytest.raises(TextEncoderError, match=rf"lacks {name}"):
        load_encoder(STATIC, tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path):
    folder = tmp_path / "text"
    shutil.copytree(ASSETS / "text", folder)
    (folder / "encoder.json").write_text(
        '{"schema_version": 2, "previous_share": 0.35, "next_share": 0.15}'
    )
    with pytest.raises(TextEncoderError, match="schema version 2"):
        load_encoder(STATIC, tmp_path)


def test_the_files_are_small():
    assert sum(path.stat().st_size for path in (ASSETS / "text").iterdir()) < 4e6
