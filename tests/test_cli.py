"""The command line as a user types it, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import hymotion_ray as hm
from hymotion_ray.cli import main
from hymotion_ray.cli_options import OLD_FLAGS

PROMPTS = "A person walks.#40#w\n"


def call(*args: object, rc: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == rc, result.output
    return result.output


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.txt"
    path.write_text(PROMPTS)
    return path


@pytest.mark.parametrize("flag", sorted(OLD_FLAGS))
def test_flags_of_the_released_tool_name_the_new_ones(flag: str, prompts: Path) -> None:
    said = call("render", prompts, "--model", "tiny", "--out", "x", flag, "1", rc=2)
    assert OLD_FLAGS[flag].split()[0] in said


def test_a_misspelt_flag_names_the_nearest(prompts: Path) -> None:
    assert "--seeds" in call("render", prompts, "--model", "m", "--out", "x", "--seed", "1", rc=2)


def test_missing_prompts_start_nothing(tmp_path: Path, random_model: Path) -> None:
    out = tmp_path / "out"
    said = call("render", tmp_path / "no.txt", "--model", random_model, "--out", out, rc=2)
    assert "no.txt" in said
    assert not out.exists()


def test_a_missing_model_starts_nothing(tmp_path: Path, prompts: Path) -> None:
    said = call("render", prompts, "--model", tmp_path / "no", "--out", tmp_path / "out", rc=2)
    assert "there is no model" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--seeds", "0", "num_seeds"),
        ("--seed-list", "1,x", "whole numbers"),
        ("--seed-list", "-1", "seed_list"),
        ("--duration", "-1", "duration"),
        ("--steps", "0", "num_steps"),
        ("--guidance", "nan", "guidance_scale"),
        ("--guidance-interval", "0.1", "0.1,0.8"),
        ("--guidance-interval", "0.8,0.1", "guidance_interval"),
        ("--null-every", "0", "null_every"),
        ("--max-failures", "many", "max_failures"),
        ("--best-of", "0", "best_of"),
        ("--sampler-gpus", "2", "sampler_gpus"),
        ("--format", "gif", "gif"),
    ],
)
def test_bad_values_are_refused_by_name(
    option: str, value: str, word: str, tmp_path: Path, prompts: Path, random_model: Path
) -> None:
    out = tmp_path / "out"
    said = call("render", prompts, "--model", random_model, "--out", out, option, value, rc=2)
    assert word in said
    assert not out.exists()


def test_a_dry_run_counts_and_loads_nothing(tmp_path: Path, prompts: Path) -> None:
    args = ("render", prompts, "--model", "/no/model", "--out", tmp_path / "out", "--seeds", 3)
    told = json.loads(call(*args, "--dry-run", "--json"))
    assert told["clips"] == 3
    assert told["stages"] == ["read", "plan", "encode", "sample", "decode", "export"]
    assert not (tmp_path / "out").exists()


def test_a_config_file_sets_options_and_the_command_line_wins(
    tmp_path: Path, prompts: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"prompts: [{prompts}]\nmodel: m\nout: {tmp_path / 'out'}\nseeds: 4\nformat: [npz, bvh]\n"
    )
    told = json.loads(call("render", "--config", config, "--dry-run", "--json"))
    assert (told["clips"], told["config"]["formats"]) == (4, ["npz", "bvh"])
    told = json.loads(call("render", "--config", config, "--seeds", 2, "--dry-run", "--json"))
    assert told["clips"] == 2


def test_an_unknown_key_in_a_config_file_names_the_nearest(tmp_path: Path, prompts: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("guidence: 3\n")
    said = call("render", prompts, "--config", config, "--model", "m", "--out", "x", rc=2)
    assert "guidence" in said
    assert "guidance" in said


def test_json_is_the_only_thing_on_stdout(
    tmp_path: Path, prompts: Path, random_model: Path
) -> None:
    command = [sys.executable, "-m", "hymotion_ray.cli", "render", str(prompts)]
    command += ["--model", str(random_model), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 1
    assert (tmp_path / "out" / "motions" / "w_s0.npz").exists()


def test_import_export_and_preview_make_what_they_say(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "release_like"
    call("import", golden, "--out", tmp_path / "model")
    call("export", tmp_path / "model", tmp_path / "release")
    assert (tmp_path / "release" / "latest.ckpt").exists()
    assert hm.load_model(tmp_path / "release").fingerprint == hm.load_model(golden).fingerprint


def test_a_motion_file_is_converted_by_suffix(tmp_path: Path) -> None:
    model = hm.load_model(Path(__file__).parent / "golden" / "release_like")
    motion = model.decode(torch.randn(40, 201))
    hm.save_motion(motion, tmp_path / "a.npz")
    call("export", tmp_path / "a.npz", tmp_path / "a.bvh")
    call("preview", tmp_path / "a.npz", "--out", tmp_path / "page.html")
    back = hm.load_motion(tmp_path / "a.bvh")
    assert float((back.joints[:, :22] - motion.joints[:, :22]).abs().max()) < 1e-3
    assert "</html>" in (tmp_path / "page.html").read_text()


def test_export_says_what_it_cannot_convert(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("x")
    (tmp_path / "a.npz").write_text("x")
    said = call("export", tmp_path / "a.xyz", tmp_path / "a.bvh", rc=2)
    assert "xyz is not a known motion format" in said
    assert "not an npz file" in call("export", tmp_path / "a.npz", tmp_path / "a.bvh", rc=2)
    assert "no such file" in call("export", tmp_path / "b.npz", tmp_path / "a.bvh", rc=2)
    assert "there is no model" in call("export", tmp_path / "nothing", tmp_path / "out", rc=2)
    assert "give a new folder" in call("export", "tiny", tmp_path / "a.glb", rc=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "a.xyz"]


def test_a_motion_may_be_converted_onto_itself(tmp_path: Path) -> None:
    motion = hm.load_model("tiny").decode(torch.zeros(12, 201))
    hm.save_motion(motion, tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()
    call("export", tmp_path / "a.npz", tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before


def test_help_names_every_command() -> None:
    said = call("--help")
    for name in ("render", "import", "export", "preview", "ingest"):
        assert name in said


def test_a_command_without_its_extra_names_it(tmp_path: Path) -> None:
    """Pydantic and Starlette come with the extras; here they are as good as missing."""
    for package in ("pydantic", "starlette"):
        (tmp_path / f"{package}.py").write_text("raise ModuleNotFoundError('No module: of a test')")
    for extra, words in (("train", ["--data", "x", "--out", "y"]), ("serve", ["--model", "tiny"])):
        done = subprocess.run(
            [sys.executable, "-m", "hymotion_ray.cli", extra, *words],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done.stderr
        assert f"pip install 'hymotion-ray[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
