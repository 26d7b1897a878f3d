"""A model folder that is not what it should be is named, with what to do, before weights load."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from tiny_models import save_qwen3

from hymotion_ray.config import TextConfig
from hymotion_ray.errors import MissingDependencyError, TextEncoderError
from hymotion_ray.text.load import encoder_fingerprint, load_encoder, load_token_counter
from hymotion_ray.text.template import OUR_SYSTEM_MESSAGE, read_template

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.fixture
def folders(qwen3, clip, tmp_path):
    """Copies of both folders, free to damage."""
    return {
        "llm_path": shutil.copytree(qwen3, tmp_path / "qwen3"),
        "clip_path": shutil.copytree(clip, tmp_path / "clip"),
    }


def refuse(folders, match, **options):
    with pytest.raises(TextEncoderError, match=match):
        load_encoder(TextConfig(), "unused", **folders, **options)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("which", ["llm_path", "clip_path"])
class TestBothFolders:
    def test_not_given(self, folders, which):
        refuse(folders | {which: None}, rf"none is given; set {which}.*hf download")

    def test_not_there(self, folders, which):
        refuse(
            folders | {which: "Qwen/Qwen3-8B"}, rf"{which} is 'Qwen/Qwen3-8B', which is no folder"
        )

    def test_of_another_kind(self, folders, which):
        edit_config(folders[which], model_type="llama")
        refuse(folders, r"type 'llama'; allowed: (qwen3|clip)")

    def test_config_damaged(self, folders, which):
        (folders[which] / "config.json").write_text("{")
        refuse(folders, "config.json cannot be read")

    def test_no_tokenizer(self, folders, which):
        for name in ("tokenizer.json", "vocab.json", "merges.txt"):
            (folders[which] / name).unlink(missing_ok=True)
        refuse(folders, "lacks the tokenizer")

    def test_tokenizer_damaged(self, folders, which):
        (folders[which] / "tokenizer.json").write_text('{"model": 3}')
        refuse(folders, "tokenizer in .* cannot be read")

    def test_lfs_pointer_for_weights(self, folders, which):
        (folders[which] / "model.safetensors").write_bytes(LFS)
        refuse(folders, "Git LFS pointer.*git lfs pull")

    def test_only_pickled_weights(self, folders, which):
        (folders[which] / "model.safetensors").rename(folders[which] / "pytorch_model.bin")
        refuse(folders, r"needed \*\.safetensors, got only pytorch_model\.bin")

    def test_weights_cut_short(self, folders, which):
        weights = folders[which] / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        refuse(folders, "cannot be loaded: SafetensorError")


def test_a_missing_shard_is_named(folders):
    folder = folders["llm_path"]
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    refuse(folders, "lacks 1 of 2 weight files of Qwen3: model-00002-of-00002")
    index.write_text("[]")
    refuse(folders, "index.json is damaged")


def test_weights_never_start_at_random(folders):
    edit_config(folders["llm_path"], num_hidden_layers=4, layer_types=["full_attention"] * 4)
    refuse(folders, r"lack \d+ tensors that its config.json asks for.*layers\.3")


def test_a_model_without_chat_template_is_refused(folders):
    (folders["llm_path"] / "chat_template.jinja").unlink()
    refuse(folders, "chat template")


def test_widths_are_checked_before_weights_are_read(folders):
    for which in folders:
        (folders[which] / "model.safetensors").write_bytes(b"not weights")
    refuse(folders, r"context features are 32 wide.*takes 4096", expected_context_dim=4096)
    refuse(folders, r"vector features are 24 wide.*takes 768", expected_vector_dim=768)


def test_without_transformers_the_extra_is_named(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hymotion-ray\[text\]'"):
        load_encoder(TextConfig(), "unused", **folders)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hymotion-ray\[text\]'"):
        load_token_counter(TextConfig(), "unused", llm_path=folders["llm_path"])
    assert encoder_fingerprint(TextConfig(), "unused", **folders)


def test_a_bare_trunk_and_the_full_model_give_the_same(clip, tmp_path):
    full = save_qwen3(tmp_path / "full")
    bare = tmp_path / "bare"
    from transformers import Qwen3Model

    shutil.copytree(full, bare)
    Qwen3Model.from_pretrained(full).save_pretrained(bare)
    contexts = [
        load_encoder(TextConfig(), "unused", llm_path=folder, clip_path=clip)
        .encode(["jump"])
        .context
        for folder in (full, bare)
    ]
    assert contexts[0].equal(contexts[1])


SYSTEM = {"role": "system", "content": "Say {} what moves."}
USER = {"role": "user", "content": "{}"}


@pytest.mark.parametrize(
    "stored",
    [
        "Say {} what moves.",
        json.dumps(SYSTEM),
        json.dumps([SYSTEM]),
        json.dumps([SYSTEM, USER]),
        json.dumps({"template": [SYSTEM, USER], "crop_start": 101}),
        json.dumps({"messages": [SYSTEM]}),
        json.dumps("Say {} what moves."),
    ],
)
def test_a_template_is_read_in_every_form(stored):
    template = read_template(stored)
    assert template.source == "given"
    assert template.messages("walk {}") == [
        SYSTEM,
        {"role": "user", "content": "walk {}"},
    ]


def test_no_template_means_ours():
    assert read_template(None).source == "ours"
    assert read_template(OUR_SYSTEM_MESSAGE).source == "ours"


@pytest.mark.parametrize(
    "stored",
    ["", "3", "[]", "{}", json.dumps([USER]), json.dumps([SYSTEM, SYSTEM]), '[{"role": "system"}]']
    + [json.dumps([SYSTEM, USER | {"content": content}]) for content in ("text", "{} {}")],
)
def test_other_templates_are_refused(stored):
    with pytest.raises(TextEncoderError, match="template"):
        read_template(stored)
