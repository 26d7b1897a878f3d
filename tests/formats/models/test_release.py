"""A release comes in whole, goes out again, and stays the same model both ways."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hymotion_ray.config import ModelConfig, NetworkConfig, TextConfig
from hymotion_ray.errors import CheckpointError, InputError, OutputError
from hymotion_ray.formats.models import prompt_template
from hymotion_ray.formats.models.checkpoint import Checkpoint, read_model, write_model
from hymotion_ray.formats.models.names import network_shapes
from hymotion_ray.formats.models.release import export_release, import_release

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(p.parent.name for p in GOLDEN.glob("*/latest.ckpt"))
CONSTANTS = "hymotion/network/text_encoders/model_constants.py"
SYSTEM = 'A system message\nof two lines, with "quotes" and ünïcode.'


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A release as it is published: config and weights alone."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.yml", "latest.ckpt"):
        shutil.copy(GOLDEN / "release_like" / name, folder)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up checkout: a body somewhere inside it, and the constant with a message of ours."""
    root = tmp_path / "checkout"
    (root / CONSTANTS).parent.mkdir(parents=True)
    (root / CONSTANTS).write_text(
        "import os\nos.mkdir('ran')\n\n"
        "PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = [\n"
        f"    {{'role': 'system', 'content': {SYSTEM!r}}},\n"
        "    {'role': 'user', 'content': '{}'},\n]\n",
        "utf-8",
    )
    (root / ".git" / "body").mkdir(parents=True)
    shutil.copy(GOLDEN / "release_like" / "body" / "v_template.bin", root / ".git" / "body")
    shutil.copytree(GOLDEN / "release_like" / "body", root / "some" / "place" / "wooden")
    digest = hashlib.sha256(SYSTEM.encode()).hexdigest()
    monkeypatch.setattr(prompt_template, "RELEASED_TEMPLATE_SHA256", digest)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.parametrize("case", CASES)
def test_import_and_export_keep_the_model(case: str, tmp_path: Path) -> None:
    wanted = read_model(GOLDEN / case)
    report = import_release(GOLDEN / case, tmp_path / "in")
    export_release(tmp_path / "in", tmp_path / "out")
    back = read_model(tmp_path / "out")
    assert report.fingerprint == read_model(tmp_path / "in").fingerprint == wanted.fingerprint
    assert back.fingerprint == wanted.fingerprint
    assert back.config == wanted.config
    originals = torch.load(GOLDEN / case / "latest.ckpt", weights_only=True)["model_state_dict"]
    exported = torch.load(tmp_path / "out" / "latest.ckpt", weights_only=True)["model_state_dict"]
    assert exported.keys() == {n for n in originals if not n.startswith("body_model.")}
    assert all(torch.equal(exported[n], originals[n]) for n in exported)


def test_import_without_a_checkout_says_what_it_costs(bare: Path, tmp_path: Path) -> None:
    report = import_release(bare, tmp_path / "out")
    assert set(report.missing) == {
        "body mesh", "skeleton", "prompt template", "llm_path", "clip_path"
    }  # fmt: skip
    assert "ankle and foot joints instead of the mesh" in report.missing["body mesh"]
    assert "--checkout" in report.missing["prompt template"]
    assert report.variant == "other"
    assert report.num_parameters == sum(t.numel() for t in read_model(bare).tensors().values())
    assert read_model(tmp_path / "out").fingerprint == read_model(bare).fingerprint


def test_import_with_a_checkout_is_complete_and_runs_nothing(
    bare: Path, checkout: Path, tmp_path: Path
) -> None:
    encoders = [tmp_path / name for name in ("qwen", "clip")]
    for folder in encoders:
        folder.mkdir()
    report = import_release(bare, tmp_path / "out", checkout, *encoders)
    assert report.missing == {}
    assert report.found["body"] == str(checkout / "some" / "place" / "wooden")
    assert not (tmp_path / "ran").exists()
    model = read_model(tmp_path / "out")
    assert model.prompt_template == SYSTEM
    assert model.config.text.llm_path == str(encoders[0])
    assert model.config.text.clip_path == str(encoders[1])
    assert model.fingerprint == read_model(GOLDEN / "release_like").fingerprint, "same body"
    export_release(tmp_path / "out", tmp_path / "back")
    assert read_model(tmp_path / "back").prompt_template == SYSTEM


@pytest.mark.parametrize(
    "source",
    [
        f"PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = {SYSTEM!r}\n",
        f"PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION: list = [{{'content': {SYSTEM!r}}}]\n",
        f"PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = ({SYSTEM[:9]!r}\n    {SYSTEM[9:]!r})\n",
        f"PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = dict(template=({SYSTEM!r},), crop_start=101)\n",
    ],
)
def test_the_constant_may_have_any_literal_form(checkout: Path, source: str) -> None:
    (checkout / CONSTANTS).write_text(source, "utf-8")
    assert prompt_template.template_of_checkout(checkout) == SYSTEM


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = 'x'\n", "its longest text has 1 characters"),
        ("PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION = make()\n", "holds no text with the sha256"),
        ("OTHER = 1\n", "does not assign PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION"),
        ("def (:\n", "is not Python"),
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_another_template_is_refused(
    bare: Path, checkout: Path, tmp_path: Path, source: str, match: str
) -> None:
    (checkout / CONSTANTS).write_text(source)
    with pytest.raises(InputError, match=match):
        import_release(bare, tmp_path / "out", checkout)
    assert not (tmp_path / "out").exists()


def test_half_a_body_in_a_checkout_is_refused(bare: Path, checkout: Path, tmp_path: Path) -> None:
    (checkout / "some" / "place" / "wooden" / "faces.bin").unlink()
    with pytest.raises(CheckpointError, match=r"wooden holds a body mesh without faces\.bin"):
        import_release(bare, tmp_path / "out", checkout)


def test_an_empty_checkout_is_reported(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    report = import_release(bare, tmp_path / "out", tmp_path / "empty")
    assert "the checkout does not hold it" in report.missing["prompt template"]


def test_unusable_arguments(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is missing"):
        import_release(bare, tmp_path / "out", tmp_path / "nowhere")
    with pytest.raises(InputError, match="no_qwen is missing"):
        import_release(bare, tmp_path / "out", llm_path=tmp_path / "no_qwen")
    with pytest.raises(OutputError, match="not empty"):
        import_release(bare, bare)
    with pytest.raises(OutputError, match="not empty"):
        export_release(bare, bare)


def test_a_model_of_our_own_survives_the_released_layout(tmp_path: Path) -> None:
    network = NetworkConfig(
        feat_dim=16,
        num_layers=3,
        num_heads=2,
        ctxt_input_dim=8,
        vtxt_input_dim=4,
        qkv_bias=False,
        refiner_num_layers=1,
        narrowband_length=0.5,
    )
    generator = torch.Generator().manual_seed(0)
    own = Checkpoint(
        config=ModelConfig(
            network=network,
            text=TextConfig(kind="static", max_context_tokens=32),
            name="mine",
            licence="MIT",
            cond_mask_prob=0.2,
        ),
        network={
            n: torch.randn(s, generator=generator) for n, s in network_shapes(network).items()
        },
        null_vtxt_feat=torch.randn(1, 1, 4, generator=generator),
        null_ctxt_input=torch.randn(1, 1, 8, generator=generator),
        mean=torch.randn(201, generator=generator),
        std=torch.rand(201, generator=generator),
    )
    write_model(own, tmp_path / "a")
    (tmp_path / "a" / "text").mkdir()
    (tmp_path / "a" / "text" / "vectors.bin").write_bytes(b"123")
    export_release(tmp_path / "a", tmp_path / "b")
    back = read_model(tmp_path / "b")
    assert back.config == own.config
    assert back.fingerprint == own.fingerprint
    assert [p.read_bytes() for p in back.text_files] == [b"123"]
    assert back.special_game_vtxt_feat is None


def test_exported_config_has_the_released_key_set(tmp_path: Path) -> None:
    export_release(GOLDEN / "release_like", tmp_path / "out")
    released = yaml.safe_load((GOLDEN / "release_like" / "config.yml").read_text())
    exported = yaml.safe_load((tmp_path / "out" / "config.yml").read_text())
    pipeline, wanted = (t["train_pipeline_args"] for t in (exported, released))
    assert pipeline == wanted
    args = exported["network_module_args"]
    assert released["network_module_args"].items() <= args.items()


def test_exports_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_release(GOLDEN / "release_like", tmp_path / name)
    for file in ("latest.ckpt", "config.yml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_report_is_plain_data(bare: Path, tmp_path: Path) -> None:
    report = dataclasses.asdict(import_release(bare, tmp_path / "out"))
    assert report["folder"] == str(tmp_path / "out")
