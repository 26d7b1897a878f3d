"""Every form of a model gives the same checkpoint, and the fingerprint tells content apart."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from hymotion_ray.config import ModelConfig, NetworkConfig, SamplingConfig, TextConfig
from hymotion_ray.config.releases import released_network
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.models.checkpoint import Checkpoint, read_model, write_model
from hymotion_ray.formats.models.names import (
    feature_shapes,
    network_shapes,
)
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.motion.skeleton import generic_skeleton

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(p.parent.name for p in GOLDEN.glob("*/latest.ckpt"))


@pytest.fixture
def checkpoint() -> Checkpoint:
    """A small model made in memory, with no body, no game features and half-precision weights."""
    network = NetworkConfig(
        feat_dim=16, num_layers=3, num_heads=2, ctxt_input_dim=8, vtxt_input_dim=4
    )
    generator = torch.Generator().manual_seed(0)
    shapes = network_shapes(network)
    return Checkpoint(
        config=ModelConfig(network=network, text=TextConfig(kind="static"), name="small"),
        network={n: torch.randn(s, generator=generator).half() for n, s in shapes.items()},
        null_vtxt_feat=torch.randn(1, 1, 4, generator=generator),
        null_ctxt_input=torch.randn(1, 1, 8, generator=generator),
        mean=torch.randn(201, generator=generator),
        std=torch.rand(201, generator=generator),
    )


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    mine, theirs = a.tensors(), b.tensors()
    return mine.keys() == theirs.keys() and all(
        mine[n].dtype == theirs[n].dtype and torch.equal(mine[n], theirs[n]) for n in mine
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_release_and_converted_folder_hold_the_same_model(case: str, tmp_path: Path) -> None:
    released = read_model(GOLDEN / case)
    write_model(released, tmp_path / "out")
    converted = read_model(tmp_path / "out")
    assert equal(released, converted)
    assert released.config == converted.config
    assert released.fingerprint == converted.fingerprint
    assert released.skeleton.same_as(converted.skeleton)
    for field in dataclasses.fields(released.mesh):
        before, after = (getattr(c.mesh, field.name) for c in (released, converted))
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_are_those_of_the_network(case: str) -> None:
    checkpoint = read_model(GOLDEN / case)
    model = MotionMMDiT(checkpoint.config.network, checkpoint.config.train_frames)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == network_shapes(checkpoint.config.network)
    model.load_state_dict(checkpoint.network, strict=True)


@pytest.mark.parametrize(
    ("variant", "num_tensors", "num_parameters"),
    [("1.0", 428, 1_042_878_811), ("lite", 308, 460_851_803)],
)
def test_released_sizes_follow_from_the_shapes(
    variant: str, num_tensors: int, num_parameters: int
) -> None:
    config = released_network(variant)
    shapes = [*network_shapes(config).values(), *feature_shapes(config).values(), (201,), (201,)]
    assert len(shapes) == num_tensors
    assert sum(math.prod(shape) for shape in shapes) == num_parameters


def test_config_of_the_released_key_set() -> None:
    config = read_model(GOLDEN / "release_like").config
    assert config.network == NetworkConfig(
        feat_dim=32,
        num_layers=6,
        num_heads=4,
        ctxt_input_dim=32,
        vtxt_input_dim=24,
        mask_mode="narrowband",
        narrowband_length=0.3,
        apply_rope_to_single_branch=False,
        time_factor=1000.0,
    )
    assert config.sampling == SamplingConfig(num_steps=6, guidance_scale=5.0, method="euler")
    assert (config.train_frames, config.enable_special_game_feat) == (60, True)
    assert config.text == TextConfig(kind="qwen_clip", max_context_tokens=128)


def test_absent_keys_take_the_stated_defaults(release: Path) -> None:
    tree = yaml.safe_load((release / "config.yml").read_text())
    args = tree["network_module_args"]
    for key in ("apply_rope_to_single_branch", "narrowband_length", "time_factor"):
        del args[key]
    args["mask_mode"] = None
    (release / "config.yml").write_text(yaml.safe_dump(tree))
    network = read_model(release).config.network
    assert network.mask_mode == "none"
    assert network.narrowband_length == 2.0
    assert network.time_factor == 1.0
    assert network.apply_rope_to_single_branch is True
    assert network.qkv_bias is True
    assert network.refiner_num_layers == 2
    assert network.insert_start_token is False
    assert network.with_long_skip_connection is False


def test_checkpoint_without_body_tensors_and_with_encoder_tensors(release: Path) -> None:
    path = release / "latest.ckpt"
    state = torch.load(path, weights_only=True)["model_state_dict"]
    state = {n: t for n, t in state.items() if not n.startswith("body_model.")}
    state["text_encoder.some.weight"] = torch.zeros(3)
    state["mean"], state["std"] = state["mean"][None], state["std"][None]
    torch.save({"model_state_dict": state, "epoch": np.int64(3), "global_step": 7}, path)
    assert read_model(release).fingerprint == read_model(GOLDEN / "release_like").fingerprint


def test_safetensors_with_published_names(release: Path, tmp_path: Path) -> None:
    state = torch.load(release / "latest.ckpt", weights_only=True)["model_state_dict"]
    (release / "latest.ckpt").unlink()
    kept = {n: t for n, t in state.items() if n not in ("mean", "std")}
    save_file(kept, release / "weights.safetensors")
    wanted = read_model(GOLDEN / "release_like").fingerprint
    assert read_model(release).fingerprint == wanted, "statistics come from stats/"
    assert read_model(release / "weights.safetensors").fingerprint == wanted


def test_training_checkpoint_is_a_converted_folder(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000006"
    write_model(checkpoint, folder)
    (folder / "state").mkdir()
    torch.save({"optimizer": {}}, folder / "state" / "rank0.pt")
    assert read_model(folder).fingerprint == checkpoint.fingerprint


def test_writing_is_deterministic_and_reads_back(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint = dataclasses.replace(
        checkpoint, skeleton=generic_skeleton(), prompt_template="línea\r\n"
    )
    for name in ("a", "b"):
        write_model(checkpoint, tmp_path / name)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    read = read_model(tmp_path / "a")
    assert equal(read, checkpoint)
    assert read.config == checkpoint.config
    assert read.prompt_template == "línea\r\n"
    assert read.mesh is None
    assert read.skeleton.same_as(checkpoint.skeleton)
    write_model(read, tmp_path / "c")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "c"), "a mapped model writes the same"


def test_text_files_travel_with_the_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_model(checkpoint, tmp_path / "a")
    (tmp_path / "a" / "text" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "text" / "deep" / "vectors.bin").write_bytes(b"123")
    write_model(read_model(tmp_path / "a"), tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_writing_never_touches_what_is_there(checkpoint: Checkpoint, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        write_model(checkpoint, taken)
    with pytest.raises(OutputError, match="is a file"):
        write_model(checkpoint, taken / "notes.txt")
    assert files_of(tmp_path) == {"taken/notes.txt": b"mine"}


def test_failed_write_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    broken = dataclasses.replace(checkpoint, mean=torch.zeros(7))
    with pytest.raises(RuntimeError):
        write_model(broken, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_variant_comes_from_shapes_whatever_the_dtype() -> None:
    shapes = network_shapes(released_network("lite"))
    meta = {n: torch.empty(s, dtype=torch.float16, device="meta") for n, s in shapes.items()}
    blank = torch.zeros(1)
    lite = Checkpoint(
        config=ModelConfig(network=released_network("lite")),
        network=meta,
        null_vtxt_feat=blank,
        null_ctxt_input=blank,
        mean=blank,
        std=blank,
    )
    assert lite.variant == "lite"
    assert read_model(GOLDEN / "release_like").variant == "other"


CHANGES = {
    "a weight": lambda c: {
        "network": c.network | {"final_layer.linear.bias": c.network["final_layer.linear.bias"] + 1}
    },
    "null vector": lambda c: {"null_vtxt_feat": c.null_vtxt_feat * 2},
    "null context": lambda c: {"null_ctxt_input": c.null_ctxt_input * 2},
    "mean": lambda c: {"mean": c.mean + 1e-6},
    "std": lambda c: {"std": c.std * 1.001},
    "skeleton": lambda c: {"skeleton": generic_skeleton()},
    "dtype": lambda c: {"network": {n: t.float() for n, t in c.network.items()}},
    "solver": lambda c: {
        "config": dataclasses.replace(c.config, sampling=SamplingConfig(method="rk4"))
    },
    "mask": lambda c: {
        "config": dataclasses.replace(
            c.config, network=dataclasses.replace(c.config.network, mask_mode="causal")
        )
    },
    "window": lambda c: {"config": dataclasses.replace(c.config, train_frames=99)},
    "null context switch": lambda c: {
        "config": dataclasses.replace(c.config, enable_ctxt_null_feat=False)
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_fingerprint_changes_with_what_decides_motions(checkpoint: Checkpoint, change: str) -> None:
    changed = dataclasses.replace(checkpoint, **CHANGES[change](checkpoint))
    assert changed.fingerprint != checkpoint.fingerprint


def test_fingerprint_ignores_names_and_paths(checkpoint: Checkpoint) -> None:
    config = dataclasses.replace(
        checkpoint.config,
        name="other",
        licence="MIT",
        cond_mask_prob=0.2,
        text=TextConfig(kind="static", llm_path="/somewhere"),
    )
    assert dataclasses.replace(checkpoint, config=config).fingerprint == checkpoint.fingerprint
