"""Model folders as they turn up: odd paths, broken links, odd tensors, configs made to do harm."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import hymotion_ray as hm
from hymotion_ray.errors import CheckpointError, OutputError
from hymotion_ray.formats.models.checkpoint import read_model, write_model
from hymotion_ray.formats.models.new_folder import new_folder
from hymotion_ray.formats.models.release import export_release, import_release

GOLDEN = Path(__file__).parents[2] / "golden" / "release_like"


def refused(folder: Path, match: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match=match) as caught:
            read_model(folder)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "name",
    [
        *("latest.ckpt", "config.yml", "stats", "stats/Std.npy", "body", "prompt_template.txt"),
        *(f"body/{p.name}" for p in sorted((GOLDEN / "body").iterdir())),
    ],
)
def test_a_broken_link_is_never_taken_for_nothing(release: Path, name: str) -> None:
    path = release / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to("fetched/elsewhere")
    refused(release, f"{path.name} is a link to fetched/elsewhere, which is missing")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_for_a_file_does_not_hang(release: Path) -> None:
    (release / "latest.ckpt").unlink()
    os.mkfifo(release / "latest.ckpt")
    refused(release, "latest.ckpt is a device or pipe")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.to_sparse(), "sparse, quantised or empty-handed"),
        (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "quantised"),
        (lambda t: torch.empty(t.shape, device="meta"), "meta"),
        (lambda t: t.tolist(), "list, not a tensor"),
        (lambda t: t.int(), "dtype that is not read"),
        (lambda t: t.to(torch.complex64), "dtype that is not read"),
        (lambda t: t.to(torch.float8_e4m3fn), "dtype that is not read"),
    ],
)
@pytest.mark.parametrize("name", ["mean", "null_vtxt_feat"])
def test_tensors_that_hold_no_plain_numbers(
    release: Path, name: str, change: Callable[[torch.Tensor], object], match: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of sparse and quantised tensors
        content = torch.load(release / "latest.ckpt", weights_only=True)
        content["model_state_dict"][name] = change(content["model_state_dict"][name])
        torch.save(content, release / "latest.ckpt")
    refused(release, match)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 5_000,
        b'{"a":' * 10_000,
        b"a: 2001-99-99\n",
        b"a: " + b"9" * 5000 + b"\n",
        b"\xff\xfe\x00",
        b'!!python/object/apply:os.system ["exit 1"]\n',
    ],
    ids=range(6),
)
def test_a_config_that_is_made_to_do_harm(release: Path, converted: Path, text: bytes) -> None:
    (release / "config.yml").write_bytes(text)
    refused(release, "config.yml is not YAML")
    (converted / "config.json").write_bytes(text)
    refused(converted, "config.json is not JSON")


def test_aliases_that_would_print_for_ever(release: Path) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    text = "\n".join([*lines, "network_module_args: *a39", "network_module: x"])
    (release / "config.yml").write_text(text)
    refused(release, "network_module is 'x'")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("network_module_args", "num_layers", 3 * 10**30),
        ("network_module_args", "mlp_ratio", 1e99),
        ("network_module_args", "narrowband_length", float("inf")),
        ("network_module_args", "time_factor", float("nan")),
        ("train_pipeline_args", "train_frames", 10**30),
        ("train_pipeline_args", "mean_std_dir", "stats\0"),
    ],
)
def test_values_that_would_take_all_memory(
    release: Path, section: str, key: str, value: object
) -> None:
    tree = yaml.safe_load((release / "config.yml").read_text())
    tree[section][key] = value
    (release / "config.yml").write_text(yaml.safe_dump(tree))
    refused(release, f"{key} is")


def test_a_config_that_was_cut_short_says_what_it_lacks(release: Path) -> None:
    text = (release / "config.yml").read_text()
    (release / "config.yml").write_text(text[: text.index("  test_cfg:")])
    lacks = r"lacks train_frames, test_cfg.text_guidance_scale .*is the file whole\?"
    with pytest.warns(UserWarning, match=lacks):
        assert read_model(release).config.train_frames == 360


@pytest.mark.parametrize("name", ["lauf über Straße", "走路 模型", "a'b\"c$d", "-rf", "x" * 200])
def test_paths_of_any_spelling_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    own = read_model(GOLDEN).fingerprint
    monkeypatch.chdir(tmp_path)
    report = import_release(GOLDEN, name)
    assert report.fingerprint == own
    assert hm.load_model(f"./{name}").fingerprint == own
    (tmp_path / "link").symlink_to(name)
    export_release("link", tmp_path / "back")
    monkeypatch.chdir("/")
    assert hm.load_model(tmp_path / name).fingerprint == own
    assert hm.load_model(tmp_path / "back").fingerprint == own
    assert import_release(tmp_path / "back", tmp_path / "again").fingerprint == own


def test_weights_that_are_not_finite_are_not_imported(release: Path, tmp_path: Path) -> None:
    content = torch.load(release / "latest.ckpt", weights_only=True)
    content["model_state_dict"]["motion_transformer.final_layer.linear.bias"][7] = float("nan")
    torch.save(content, release / "latest.ckpt")
    with pytest.raises(CheckpointError, match=r"1 tensors hold NaN.*final_layer\.linear\.bias"):
        import_release(release, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_imports_to_one_place_leave_one_whole_model(tmp_path: Path) -> None:
    model, target = read_model(GOLDEN), tmp_path / "model"

    def write_slowly() -> None:
        with new_folder(target) as new:
            write_model(model, target)  # another process, done while this one still writes
            (new / "half").write_text("x")

    with pytest.raises(OutputError, match="model exists and is not empty"):
        write_slowly()
    assert hm.load_model(tmp_path / "model").fingerprint == model.fingerprint
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(OutputError, match=r"locked.*cannot be written"):
        import_release(GOLDEN, tmp_path / "locked" / "out")


def test_the_built_in_model_goes_through_both_ways(tmp_path: Path) -> None:
    report = import_release("tiny", tmp_path / "copy")
    export_release("tiny", tmp_path / "release")
    tiny = hm.load_model("tiny")
    assert report.fingerprint == tiny.fingerprint
    for folder in ("copy", "release"):
        model = hm.load_model(tmp_path / folder)
        assert model.fingerprint == tiny.fingerprint
        assert torch.equal(
            model.encode("a person walks").context, tiny.encode(["a person walks"]).context
        )
