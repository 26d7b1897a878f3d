"""A folder in the release's layout renders through real Qwen3 and CLIP encoders; so does tiny."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from chat_server import completion, serve

import hymotion_ray as hm
from hymotion_ray.config.render import RenderConfig, ResourceConfig, RewriteConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.job import JobReport, run_job
from hymotion_ray.formats.atomic import open_store

pytestmark = pytest.mark.ray
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden network as a release folder with the released training window."""
    folder = tmp_path_factory.mktemp("release") / "model"
    shutil.copytree(REPO / "tests" / "golden" / "release_like", folder)
    config = yaml.safe_load((folder / "config.yml").read_text())
    config["train_pipeline_args"]["train_frames"] = 360
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    return folder


def run(prompts: Path, out: Path, **settings: object) -> JobReport:
    config = RenderConfig(
        prompts=(str(prompts),),
        out=str(out),
        resources=ResourceConfig(num_samplers=1),
        **settings,  # type: ignore[arg-type]
    )
    return run_job(config, lambda line: None)


def manifest(out: Path) -> list[dict[str, object]]:
    return [r for batch in read_batches(open_store(out)) for r in batch.to_pylist()]


@pytest.mark.slow
def test_groups_of_prompts_render_with_a_release_folder(
    ray, release: Path, qwen3: Path, clip: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = run(
        REPO / "examples" / "groups.json",
        out,
        model=str(release),
        num_steps=2,
        llm_path=str(qwen3),
        clip_path=str(clip),
    )
    assert (report.exit_code, report.done) == (0, report.counts.asked)
    assert report.done > 10
    model = hm.load_model(release, llm_path=qwen3, clip_path=clip)
    row = manifest(out)[0]
    condition = model.encode([str(row["text"])])
    grid = json.loads((out / "config.json").read_text())["grid"]
    assert row["cell"].startswith(f"{grid['rows']}x")
    motion = hm.load_motion(out / str(row["file"]))
    latent = model.sample(condition, [hm.Row(0, int(row["num_frames"]), 0)], num_steps=2)[0]
    other = model.decode(latent)
    assert float((motion.joints - other.joints).abs().max()) < 1e-4


def test_the_released_prompt_file_renders_with_a_release_folder(
    ray, shared: Path, release: Path, qwen3: Path, clip: Path, tmp_path: Path
) -> None:
    report = run(
        shared / "prompts" / "example_subset.json",
        tmp_path / "out",
        model=str(release),
        num_steps=2,
        llm_path=str(qwen3),
        clip_path=str(clip),
    )
    assert (report.exit_code, report.done, report.counts.rejected) == (0, 57, 0)


def test_the_released_prompt_file_renders_with_tiny(ray, shared: Path, tmp_path: Path) -> None:
    prompts = shared / "prompts" / "example_subset.json"
    report = run(prompts, tmp_path / "out", model="tiny", num_steps=4)
    assert (report.exit_code, report.done, report.counts.rejected) == (0, 57, 0)


def test_a_release_without_its_text_encoder_says_what_is_missing(
    ray, release: Path, tmp_path: Path
) -> None:
    with pytest.raises(hm.HyMotionError, match=r"--llm|llm_path"):
        run(REPO / "examples" / "prompts.txt", tmp_path / "out", model=str(release))


def test_a_chinese_prompt_goes_through_the_rewriter_once(
    ray, random_model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.jsonl"
    lines = [
        {"id": "zh", "text": "一个人向前走"},
        {"id": "en", "text": "A person hops.", "num_frames": 33},
    ]
    prompts.write_text("\n".join(json.dumps(line) for line in lines))
    answer = {"duration": 45, "short_caption": "A person walks forward."}
    with serve(lambda text, number: completion(json.dumps(answer))) as server:
        rewrite = RewriteConfig(endpoint=server.endpoint, model="m")
        report = run(prompts, tmp_path / "out", model=str(random_model), rewrite=rewrite)
        assert report.done == 2
        asked = len(server.requests)
        rows = {r["id"]: r for r in manifest(tmp_path / "out")}
        assert rows["zh"]["text"] == rows["en"]["text"] == "A person walks forward."
        assert rows["zh"]["original_text"] == "一个人向前走"
        assert (rows["zh"]["num_frames"], rows["en"]["num_frames"]) == (45, 33)
        again = run(prompts, tmp_path / "out", model=str(random_model), rewrite=rewrite)
        assert (again.done, again.counts.done) == (0, 2)
        assert len(server.requests) == asked


@pytest.mark.slow
def test_a_dead_rewriter_leaves_the_prompt_and_says_so(
    ray, random_model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("A person walks.#40#w\n")
    rewrite = RewriteConfig(endpoint="http://127.0.0.1:9", model="m", timeout_s=1)
    report = run(prompts, tmp_path / "out", model=str(random_model), rewrite=rewrite)
    assert report.exit_code == 0
    (row,) = manifest(tmp_path / "out")
    assert row["text"] == "A person walks."
    assert "not rewritten" in row["warnings"]
