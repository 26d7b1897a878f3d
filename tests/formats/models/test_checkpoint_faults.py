"""Each fault of a model folder is one clear `CheckpointError`, and nothing is filled in."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.models.checkpoint import read_model

GOLDEN = Path(__file__).parents[2] / "golden" / "release_like"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4171525244\n"
State = dict[str, Any]


def edit_state(release: Path, change: Callable[[State], State]) -> None:
    path = release / "latest.ckpt"
    state = torch.load(path, weights_only=True)["model_state_dict"]
    torch.save({"model_state_dict": change(state)}, path)


def edit_config(release: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = yaml.safe_load((release / "config.yml").read_text())
    change(tree)
    (release / "config.yml").write_text(yaml.safe_dump(tree))


def refused(folder: Path, match: str) -> str:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_model(folder)
    return str(caught.value)


RELEASE_FILES = [
    *("config.yml", "latest.ckpt", "stats/Mean.npy", "stats/Std.npy"),
    *(f"body/{p.name}" for p in sorted((GOLDEN / "body").iterdir())),
]


@pytest.mark.parametrize("name", RELEASE_FILES)
def test_pointer_text_and_empty_file(release: Path, name: str) -> None:
    (release / name).write_bytes(POINTER)
    refused(release, rf"{Path(name).name} is a Git LFS pointer.*git lfs pull")
    (release / name).write_bytes(b"")
    refused(release, rf"{Path(name).name} is empty \(0 bytes\)")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text/vectors.safetensors"])
def test_pointer_text_and_empty_file_in_a_converted_folder(converted: Path, name: str) -> None:
    (converted / name).write_bytes(POINTER)
    refused(converted, "git lfs pull")
    (converted / name).write_bytes(b"")
    refused(converted, "empty")


@pytest.mark.parametrize("name", [n for n in RELEASE_FILES if not n.endswith((".json", "yml"))])
@pytest.mark.parametrize("keep", [0.97, 0.4, 0.0001])
def test_cut_short(release: Path, name: str, keep: float) -> None:
    size = (release / name).stat().st_size
    os.truncate(release / name, int(size * keep) | 5)  # an odd size: no whole row of any array
    refused(release, Path(name).name)


@pytest.mark.parametrize("num_bytes", [5, 5_000, -1_000, -1])
def test_cut_safetensors(converted: Path, num_bytes: int) -> None:
    path = converted / "model.safetensors"
    os.truncate(path, num_bytes % path.stat().st_size)
    refused(converted, "model.safetensors .* cut short")


@pytest.mark.parametrize("name", ["config.yml", "latest.ckpt", "stats/Std.npy", "body/faces.bin"])
def test_missing_file(release: Path, name: str) -> None:
    (release / name).unlink()
    what = "no model" if name == "config.yml" else f"{Path(name).name} is missing.*holds"
    refused(release, what)


def test_missing_folder_and_files_for_folders(release: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "missing; a folder is expected.*holds release/")
    refused(release / "latest.ckpt", "is a file; give the folder")
    refused(tmp_path, "holds no model; its folders release look like models")
    for name in ("stats", "body"):
        copy = Path(shutil.copytree(release, tmp_path / f"no_{name}"))
        shutil.rmtree(copy / name)
        (copy / name).write_text("x")
        refused(copy, f"{name} is a file; a folder is expected")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("network_module: [", "config.yml is not YAML"),
        ("- just\n- a list\n", "holds a list; allowed: a mapping"),
        ("model: {}\n", "lacks the key 'network_module'"),
        ("\udcff", "not YAML"),
    ],
)
def test_config_yml_of_another_kind(release: Path, text: str, match: str) -> None:
    (release / "config.yml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused(release, match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "config.json is not JSON"),
        ("[]", "is not the config of a hymotion-ray model"),
        ('{"hidden_size": 4}', "unknown key 'hidden_size'"),
    ],
)
def test_config_json_of_another_kind(converted: Path, text: str, match: str) -> None:
    (converted / "config.json").write_text(text)
    refused(converted, match)


def test_other_schema_version_gives_advice(converted: Path) -> None:
    path = converted / "config.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    refused(converted, "schema_version is 99.*convert again")


def test_unknown_class_paths_are_refused_by_name(release: Path) -> None:
    edit_config(release, lambda tree: tree.update(network_module="evil/module.Thing"))
    refused(release, "network_module is 'evil/module.Thing', a class this project does not have")
    edit_config(release, lambda tree: tree.update(network_module=None))
    refused(release, "network_module is None")


def test_unknown_network_key_names_the_nearest(release: Path) -> None:
    edit_config(release, lambda tree: tree["network_module_args"].update(narrowband_lenght=1.0))
    refused(release, "unknown key 'narrowband_lenght'; did you mean 'narrowband_length'?")


def test_unknown_key_elsewhere_is_a_warning(release: Path) -> None:
    edit_config(release, lambda tree: tree["train_pipeline_args"].update(train_frame=3))
    edit_config(release, lambda tree: tree["train_pipeline_args"]["test_cfg"].update(new="x"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_model(release)
    messages = sorted(str(w.message) for w in caught)
    assert len(messages) == 2
    assert "'new' under test_cfg is ignored" in messages[0]
    assert "'train_frame' under train_pipeline_args is ignored; did you mean" in messages[1]
    assert {w.filename for w in caught} == {__file__}, "a warning names the caller's line"


def test_a_released_config_reads_without_warnings(release: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_model(release)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("qk_norm_type", "layer", "qk_norm_type is 'layer'.*allowed: rms"),
        ("mlp_act_type", "relu", "mlp_act_type is 'relu'.*allowed: gelu_tanh"),
        ("mask_mode", "wide", "mask_mode is 'wide'.*narrowband"),
        ("feat_dim", "32", "feat_dim is '32' .*a whole number"),
        ("num_layers", 7, "num_layers is 7; allowed: a multiple of 3"),
        ("text_refiner_cfg", {"depth": 2}, "text_refiner_cfg has the unknown key 'depth'"),
        ("text_refiner_cfg", 2, "text_refiner_cfg is 2; allowed: a mapping"),
        ("final_layer_cfg", {"act_type": "gelu"}, "act_type is 'gelu'.*silu"),
        ("narrowband_length", float("nan"), "narrowband_length is nan"),
    ],
)
def test_network_values_that_are_another_network(
    release: Path, key: str, value: object, match: str
) -> None:
    edit_config(release, lambda tree: tree["network_module_args"].update({key: value}))
    refused(release, match)


def test_other_language_model_is_refused(release: Path) -> None:
    edit_config(
        release,
        lambda tree: tree["train_pipeline_args"]["text_encoder_cfg"].update(llm_type="llama"),
    )
    refused(release, "llm_type is 'llama'; allowed: qwen3")


def test_lists_are_cut_at_ten_names(release: Path) -> None:
    edit_state(release, lambda s: {n: t for n, t in s.items() if "single_blocks" not in n})
    message = refused(release, r"32 missing: .*num_layers is 6 in the config and 2 in the weights")
    assert message.count("single_blocks") == 10


def test_one_missing_one_unexpected_and_one_misshapen_in_one_error(release: Path) -> None:
    def change(state: State) -> State:
        state["motion_transformer.extra.weight"] = torch.zeros(2)
        state["motion_transformer.final_layer.linear.bias"] = torch.zeros(200)
        del state["motion_transformer.input_encoder.bias"]
        return state

    edit_state(release, change)
    refused(
        release,
        r"1 missing: motion_transformer\.input_encoder\.bias; "
        r"1 unexpected: motion_transformer\.extra\.weight; "
        r"1 of the wrong shape: motion_transformer\.final_layer\.linear\.bias \(200,\) instead of "
        r"\(201,\)\. Likely cause",
    )


@pytest.mark.parametrize("prefix", ["module.motion_transformer.", "dit.", ""])
def test_renamed_prefix_is_recognised(release: Path, prefix: str) -> None:
    def change(state: State) -> State:
        old = "motion_transformer."
        return {prefix + n.removeprefix(old) if n.startswith(old) else n: state[n] for n in state}

    edit_state(release, change)
    refused(release, f"the names carry the prefix '{prefix}' where 'motion_transformer.'")


def test_all_names_under_a_wrapper(release: Path) -> None:
    edit_state(release, lambda state: {"module." + n: t for n, t in state.items()})
    refused(release, r"the names carry the prefix 'module\.motion_transformer\.'")


def test_weights_of_another_variant(release: Path) -> None:
    edit_config(release, lambda tree: tree["network_module_args"].update(feat_dim=64, num_heads=8))
    refused(release, "feat_dim is 64 in the config and 32 in the weights")


def test_another_number_of_heads(release: Path) -> None:
    edit_config(release, lambda tree: tree["network_module_args"].update(num_heads=2))
    refused(release, "num_heads is 2 in the config and 4 in the weights")


def test_switch_that_the_weights_do_not_have(release: Path) -> None:
    edit_config(release, lambda tree: tree["network_module_args"].update(insert_start_token=True))
    refused(release, "1 missing: motion_transformer.start_token.*insert_start_token")


@pytest.mark.parametrize("names", [("null_vtxt_feat",), ("null_vtxt_feat", "null_ctxt_input")])
def test_missing_null_features_are_never_replaced(release: Path, names: tuple[str, ...]) -> None:
    edit_state(release, lambda state: {n: t for n, t in state.items() if n not in names})
    refused(release, f"lacks {' and '.join(names)}: the learned null features")


@pytest.mark.parametrize("name", ["mean", "special_game_vtxt_feat"])
def test_other_top_level_names_are_needed_too(release: Path, name: str) -> None:
    edit_state(release, lambda state: {n: t for n, t in state.items() if n != name})
    refused(release, f"1 missing: {name}")


def test_a_file_that_is_another_model(release: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}}, release / "latest.ckpt")
    refused(release, "holds no 'model_state_dict', but the keys state_dict")
    torch.save([1], release / "latest.ckpt")
    refused(release, "holds no 'model_state_dict', but list")
    edit_config(release, lambda tree: None)
    torch.save({"model_state_dict": {"conv.weight": torch.zeros(1)}}, release / "latest.ckpt")
    refused(release, "no HY-Motion checkpoint")
    torch.save({"model_state_dict": {"conv.weight": 3}}, release / "latest.ckpt")
    refused(release, "conv.weight is a int, not a tensor")


def test_a_dtype_that_is_not_read(release: Path) -> None:
    edit_state(release, lambda s: {n: t.to(torch.float64) for n, t in s.items()})
    refused(release, "dtype that is not read.*allowed: float32, bfloat16, float16")


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_code_in_a_checkpoint_does_not_run(release: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    state = torch.load(release / "latest.ckpt", weights_only=True)["model_state_dict"]
    torch.save({"model_state_dict": state, "x": Payload(marker)}, release / "latest.ckpt")
    refused(release, r"was not loaded: it asks for posix\.mkdir.*safetensors")
    assert not marker.exists()


def bad_stats() -> dict[str, tuple[str, np.ndarray, str]]:
    mean, std = (np.load(GOLDEN / "stats" / f"{n}.npy") for n in ("Mean", "Std"))
    nan = mean.copy()
    nan[7] = np.nan
    return {
        "shape": ("Mean.npy", mean[:200], r"Mean.npy: mean has shape \(200,\); allowed: \(201,\)"),
        "size 1": ("Std.npy", std[:1], r"std has shape \(1,\)"),
        "nan": ("Mean.npy", nan, "1 numbers that are not finite, the first at index 7"),
        "integers": ("Mean.npy", np.ones(201, int), "mean is int64"),
        "negative": ("Std.npy", -std, "std is -"),
        "all zero": ("Std.npy", std * 0, "every std is below 0.001"),
        "swapped": ("Mean.npy", std, "Mean.npy and mean in .* differ at 201 of 201 numbers"),
        "altered": ("Std.npy", std * 1.01, "first at index 0: .* in the file, .* with the weights"),
    }


@pytest.mark.parametrize("fault", bad_stats())
def test_unusable_statistics(release: Path, fault: str) -> None:
    name, array, match = bad_stats()[fault]
    np.save(release / "stats" / name, array)
    refused(release, match)


def test_statistics_stored_with_pickle_are_refused(release: Path) -> None:
    np.save(release / "stats" / "Mean.npy", np.array([Payload(release / "ran")], object))
    refused(release, "Mean.npy is not a numpy array file")
    assert not (release / "ran").exists()


@pytest.mark.parametrize("name", ["latest.ckpt", "stats/Mean.npy", "model.safetensors"])
def test_flipped_bytes_are_never_a_crash(release: Path, converted: Path, name: str) -> None:
    """Bytes changed at random in the part that says what the file holds: read, or refused."""
    folder = converted if name == "model.safetensors" else release
    whole = (folder / name).read_bytes()
    chance = random.Random(0)
    header = min(len(whole), 128 if name.endswith(".npy") else 12_000)
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 3, 20])):
            damaged[chance.randrange(header)] = chance.randrange(256)
        (folder / "new").write_bytes(damaged)
        (folder / "new").rename(folder / name)
        with contextlib.suppress(CheckpointError):
            read_model(folder)


def test_nan_statistics_in_the_weights(release: Path) -> None:
    edit_state(release, lambda s: s | {"std": torch.full((201,), float("nan"))})
    refused(release, "latest.ckpt: std holds 201 numbers that are not finite")
    edit_state(release, lambda s: s | {"mean": torch.zeros(1)})
    refused(release, r"latest.ckpt: mean has shape \(1,\)")


def test_half_precision_statistics_agree_by_rounding(converted: Path) -> None:
    tensors = load_file(converted / "model.safetensors")
    halves = {n: t.half().contiguous() for n, t in tensors.items()}
    save_file(halves, converted / "model.safetensors")
    exact = torch.from_numpy(np.load(GOLDEN / "stats" / "Mean.npy")).float()
    assert torch.equal(read_model(converted).mean, exact), "the file's numbers are the exact ones"


def test_statistics_folder_is_relative_to_the_model(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoy = tmp_path / "cwd" / "stats"
    decoy.mkdir(parents=True)
    for name in ("Mean", "Std"):
        np.save(decoy / f"{name}.npy", np.ones(1))
    monkeypatch.chdir(decoy.parent)
    wanted = read_model(release).fingerprint
    shutil.rmtree(release / "stats")
    assert read_model(release).fingerprint == wanted, "the weights' own numbers"
    edit_config(
        release,
        lambda tree: tree["train_pipeline_args"]["test_cfg"].update(mean_std_dir=str(decoy)),
    )
    with pytest.warns(UserWarning, match="points outside the model folder"):
        assert read_model(release).fingerprint == wanted


def test_safetensors_without_statistics_or_config(release: Path, tmp_path: Path) -> None:
    state = torch.load(release / "latest.ckpt", weights_only=True)["model_state_dict"]
    alone = tmp_path / "alone" / "weights.safetensors"
    alone.parent.mkdir()
    save_file({n: t for n, t in state.items() if n not in ("mean", "std")}, alone)
    refused(alone, "no config.yml beside it")
    shutil.copy(release / "config.yml", alone.parent)
    refused(alone, "lacks mean and std, and .* has no stats folder")


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("j_template.bin", np.zeros((24, 3), "<f4"), "24 joints; allowed: 52"),
        ("j_template.bin", np.full((52, 3), np.nan, "<f4"), "not finite"),
        ("v_template.bin", np.zeros((299, 3), "<f4"), "300 rows, v_template.bin has 299"),
        ("v_template.bin", np.full((300, 3), np.inf, "<f4"), "v_template.bin .* not finite"),
        ("skinWeights.bin", np.zeros((300, 4), "<f4"), "sums of 1"),
        ("skinIndice.bin", np.full((300, 4), 52, "<u2"), "allowed: 0 to 51"),
        ("faces.bin", np.full((200, 3), 300, "<u2"), "allowed: 0 to 299"),
        ("kintree.bin", np.arange(52, dtype="<i4") - 1, "another joint tree"),
    ],
)
def test_body_arrays_that_do_not_fit(
    release: Path, name: str, array: np.ndarray, match: str
) -> None:
    array.tofile(release / "body" / name)
    refused(release, match)


def test_body_with_other_joint_names(release: Path) -> None:
    (release / "body" / "joint_names.json").write_text('["Hips"]')
    refused(release, "other joint names")
    (release / "body" / "joint_names.json").write_text("{")
    refused(release, "joint_names.json is not JSON")
