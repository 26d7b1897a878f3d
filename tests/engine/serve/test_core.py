"""A sampler replica without Ray: the bytes of `render`, honest health, a warm-up that ends."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import time

import pytest
from local_pools import LocalEncoder, make_core

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.config.serve import PoolConfig, QueueConfig, WarmUpConfig
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.serve.core import CoreSettings, SamplerCore
from hymotion_ray.engine.serve.work import ClipDone, Work, progress_pause_s
from hymotion_ray.engine.work_chunks import Target, WorkRow, make_chunk
from hymotion_ray.errors import CheckpointError, ConfigError, SamplingError
from hymotion_ray.formats.atomic import open_store

TEXTS = ["a person walks", "a person jumps"]


def rendered(model: str, out: str) -> dict[tuple[int, int], bytes]:
    """The npz files of a bulk render, by prompt and seed, in cells of two rows."""
    config = RenderConfig(prompts=("unused",), model=model, out=out)
    info = ModelInfo.read(config)
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=2)
    settings = info.stage_settings(config, grid, out=out, hashed_folders=False)
    tokens = info.token_counter.count_tokens(TEXTS)
    rows = [
        WorkRow(
            identity=f"{number:032x}",
            noise_seeds=(seed,),
            targets=[Target(f"p{prompt}", "", seed, f"p{prompt}_s{seed}", 1)],
            text=TEXTS[prompt],
            original_text=None,
            num_frames=30,
            num_steps=info.sampling.num_steps,
            guidance_scale=info.sampling.guidance_scale,
            num_tokens=tokens[prompt],
            warnings="",
        )
        for number, (prompt, seed) in enumerate([(0, 0), (0, 1), (1, 0)])
    ]
    chunk = make_chunk(rows)
    stages = EncodeStage(settings), SampleStage(settings), DecodeStage(info.decoder)
    for stage in (*stages, ExportStage(settings)):
        stage.setup()
        chunk = stage(chunk)
    store = open_store(out)
    names = {(p, s): f"motions/p{p}_s{s}.npz" for p, s in [(0, 0), (0, 1), (1, 0)]}
    return {key: store.read_bytes(name) for key, name in names.items()}


def ask(core: SamplerCore, text: str, seeds: tuple[int, ...], **fields) -> list[ClipDone]:
    encoder = LocalEncoder(core.settings.model)
    condition = asyncio.run(encoder.encode(text))
    sampling = core.model.config.sampling
    values = {
        "num_frames": 30,
        "num_steps": sampling.num_steps,
        "guidance_scale": sampling.guidance_scale,
        "budget_s": 10.0,
    }
    ended: queue.SimpleQueue[ClipDone] = queue.SimpleQueue()
    work = Work(id="w", key="k", text=text, condition=condition, seeds=seeds, **(values | fields))
    core.submit(work, ended.put)
    return [ended.get(timeout=60) for _ in seeds]


def test_exact_mode_gives_the_bytes_of_render(random_model, tmp_path):
    wanted = rendered(str(random_model), str(tmp_path / "out"))
    core = make_core(str(random_model), PoolConfig(rows=2), QueueConfig(exact=True))
    try:
        # Alone, and then beside others of other lengths and prompts.
        alone = ask(core, TEXTS[0], (0,))[0]
        assert alone.npz == wanted[0, 0]
        assert alone.info["cell"] == "2x30x16"
        mates = ask(core, TEXTS[0], (1, 5, 0))
        assert {clip.seed: clip.npz for clip in mates}[1] == wanted[0, 1]
        assert ask(core, TEXTS[1], (0,))[0].npz == wanted[1, 0]
    finally:
        core.stop()


def test_what_cannot_be_sampled_is_refused_before_it_waits(random_model):
    core = make_core(str(random_model), PoolConfig(rows=1))
    try:
        with pytest.raises(ConfigError, match="frames"):
            ask(core, TEXTS[0], (0,), num_frames=1000)
        assert core.batcher.counts() == (0, 0, 0.0)
        assert ask(core, TEXTS[0], (0,))[0].npz is not None
    finally:
        core.stop()


def test_a_busy_core_is_healthy_and_a_dead_one_is_not(random_model, monkeypatch):
    core = make_core(str(random_model), PoolConfig(rows=1, least_step_s=0.3))
    try:
        core.check()
        ended: queue.SimpleQueue[ClipDone] = queue.SimpleQueue()
        condition = asyncio.run(LocalEncoder(str(random_model)).encode(TEXTS[0]))
        work = Work(
            id="w", key="k", text="", condition=condition, num_frames=30, seeds=(0, 1, 2),
            num_steps=5, guidance_scale=2.0, budget_s=1.0,
        )  # fmt: skip
        core.submit(work, ended.put)
        time.sleep(0.1)
        core.check()

        def dies() -> bool:
            raise SystemExit("gone")

        monkeypatch.setattr(core.batcher, "work", dies)
        for _ in range(100):
            time.sleep(0.05)
            if core._dead is not None:
                break
        with pytest.raises(SamplingError, match="has ended"):
            core.check()
    finally:
        core.stop()


def test_a_stuck_step_is_unhealthy(random_model, monkeypatch):
    core = make_core(str(random_model), PoolConfig(rows=1), QueueConfig(stall_s=0.2))
    stuck = True

    def hang() -> bool:
        while stuck:
            time.sleep(0.05)
        return False

    monkeypatch.setattr(core.batcher, "work", hang)
    core._wake.set()
    time.sleep(1.5)
    with pytest.raises(SamplingError, match="more than"):
        core.check()
    stuck = False
    core.stop()


def test_a_warm_up_ends_by_its_deadline(random_model):
    settings = CoreSettings(
        model=str(random_model),
        device="cpu",
        pool=PoolConfig(rows=1, least_step_s=0.1),
        queue=QueueConfig(),
        warm_up=WarmUpConfig(frames=(30, 60), deadline_s=0.15),
    )
    with pytest.raises(SamplingError, match="warm-up took longer"):
        SamplerCore(settings).warm_up()


def test_many_works_send_no_more_signs_of_life_than_a_few_and_none_seems_stalled():
    assert progress_pause_s(1, stall_s=120.0) == 0.25
    for num_works in (2, 8, 100, 200):
        assert num_works / progress_pause_s(num_works, stall_s=120.0) <= 8.0
    assert progress_pause_s(10_000, stall_s=120.0) < 120.0 / 3


def test_a_missing_model_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        make_core(str(tmp_path / "nowhere"), PoolConfig(rows=1))
