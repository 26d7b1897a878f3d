"""The stages of a render job as plain calls, without Ray: they equal the pure calls they wrap."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.config.grid import GridCell
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.engine.render import sample as sample_module
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.nearest import card_that_fits, flags_that_fit
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.work_chunks import ITEMS
from hymotion_ray.errors import ConfigError, SamplingError
from hymotion_ray.model.offload import LayerOffload

TEXTS = ["a person walks", "a person jumps", "a person walks"]


@pytest.fixture(scope="module")
def config(random_model: Path) -> RenderConfig:
    return RenderConfig(prompts=("unused",), model=str(random_model), out="/unused")


@pytest.fixture(scope="module")
def info(config: RenderConfig) -> ModelInfo:
    return ModelInfo.read(config)


@pytest.fixture(scope="module")
def stages(config: RenderConfig, info: ModelInfo):
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=4)
    settings = info.stage_settings(config, grid, out="/unused", hashed_folders=False)
    made = EncodeStage(settings), SampleStage(settings), DecodeStage(info.decoder)
    for stage in made:
        stage.setup()
    return made


def chunk_of(info: ModelInfo, seeds: list[list[int]], num_frames: int = 30) -> Chunk:
    tokens = info.token_counter.count_tokens(TEXTS)
    items = [
        {
            "identity": str(i),
            "text": text,
            "num_frames": num_frames,
            "noise_seeds": seeds[i],
            "num_steps": 4,
            "guidance_scale": 2.0,
            "num_tokens": tokens[i],
            "targets": [],
        }
        for i, text in enumerate(TEXTS)
    ]
    return Chunk(key="k", items=pa.Table.from_pylist(items, schema=ITEMS))


def test_a_text_is_encoded_once_whatever_its_seeds(info: ModelInfo, stages) -> None:
    encoded = stages[0](chunk_of(info, [[0], [0], [1]]))
    assert encoded.column("prompt_row") == [0, 1, 0]
    assert encoded.tensors["context"].shape[0] == 2


def test_stages_equal_the_pure_calls(info: ModelInfo, stages, random_model: Path) -> None:
    encode, sample, decode = stages
    chunk = decode(sample(encode(chunk_of(info, [[0], [0], [1]]))))
    model = hm.load_model(str(random_model))
    condition = model.encode(TEXTS)
    sampler = model.new_sampler(sample.settings.grid)
    rows = [hm.Row(i, 30, seed) for i, seed in enumerate((0, 0, 1))]
    latents = sampler.sample(
        condition.context, condition.vector, condition.length, rows, model.config.sampling
    )
    expected = model.decode(latents)
    for name in ("rot6d", "transl", "joints"):
        parts = chunk.tensors[name].split(30)
        for part, motion in zip(parts, expected, strict=True):
            assert torch.equal(part, getattr(motion, name))
    assert chunk.column("noise_seed") == [0, 0, 1]
    assert chunk.column("precision") == ["float32"] * 3


def test_failed_items_pass_by_and_the_others_keep_their_motions(info: ModelInfo, stages) -> None:
    encode, sample, decode = stages
    whole = decode(sample(encode(chunk_of(info, [[0], [0], [1]]))))
    broken = chunk_of(info, [[0], [0], [1]]).with_errors({1: ("bad", "why")})
    partly = decode(sample(encode(broken)))
    assert partly.alive == [0, 2]
    parts = whole.tensors["rot6d"].split(30)
    assert torch.equal(partly.tensors["rot6d"], torch.cat([parts[0], parts[2]]))
    assert partly.column("noise_seed") == [0, None, 1]


def test_the_best_of_several_candidates_is_kept(info: ModelInfo, stages) -> None:
    from hymotion_ray.motion.quality import measure, score

    encode, sample, decode = stages
    seeds = [[0, 1, 2], [3, 4], [5]]
    chunk = decode(sample(encode(chunk_of(info, seeds))))
    for i, kept in enumerate(chunk.column("noise_seed")):
        scores = {}
        for seed in seeds[i]:
            one = [[seed] if k == i else [0] for k in range(3)]
            alone = decode(sample(encode(chunk_of(info, one))))
            motion = hm.Motion(
                alone.tensors["rot6d"].split(30)[i],
                alone.tensors["transl"].split(30)[i],
                alone.tensors["joints"].split(30)[i],
                30,
                info.skeleton,
                {},
            )
            scores[seed] = score(measure(motion))
        assert kept == min(seeds[i], key=lambda s, found=scores: found[s])


def test_a_clip_that_is_not_finite_fails_alone(info: ModelInfo, stages) -> None:
    encode, sample, decode = stages
    encoded = encode(chunk_of(info, [[0], [0], [1]]))
    context = encoded.tensors["context"].clone()
    context[1] = float("nan")
    poisoned = encoded.with_tensors({**encoded.tensors, "context": context})
    sampled = sample(poisoned)
    assert sampled.column("error_code") == [None, "not_finite", None]
    assert sampled.column("degradations") == ["", "float32 after not finite", ""]
    assert decode(sampled).alive == [0, 2]


def test_a_clip_that_only_float32_can_sample_says_so(
    info: ModelInfo, stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sample, _ = stages
    fresh = SampleStage(dataclasses.replace(sample.settings, precision="bfloat16"))
    fresh.setup()
    real = type(fresh._sampler).sample

    def overflows(self, *args, **kwargs):
        latents = real(self, *args, **kwargs)
        if self.network.dtype == torch.bfloat16:
            latents[1] = latents[1] * float("inf")
        return latents

    monkeypatch.setattr(type(fresh._sampler), "sample", overflows)
    chunk = fresh(encode(chunk_of(info, [[0], [0], [1]])))
    assert chunk.alive == [0, 1, 2]
    assert chunk.column("precision") == ["bfloat16", "float32", "bfloat16"]
    assert chunk.column("degradations") == ["", "float32 after not finite", ""]
    assert chunk.tensors["latent"].isfinite().all()


def test_out_of_memory_halves_the_rows_and_says_so(
    info: ModelInfo, stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sample, _ = stages
    fresh = SampleStage(sample.settings)
    fresh.setup()
    real = type(fresh._sampler).sample

    def limited(self, *args, **kwargs):
        if self.grid.rows > 1:
            raise torch.OutOfMemoryError("made up: no GPU here")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(fresh._sampler), "sample", limited)
    chunk = fresh(encode(chunk_of(info, [[0], [0], [1]])))
    assert chunk.alive == [0, 1, 2]
    assert chunk.column("degradations") == ["rows 1 instead of 4 after out of memory"] * 3
    assert all(cell.startswith("1x") for cell in chunk.column("cell"))


def test_the_weights_move_to_host_memory_when_one_row_is_too_many(
    info: ModelInfo, stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sample, _ = stages
    encoded = encode(chunk_of(info, [[0], [0], [1]]))
    expected = sample(encoded).tensors["latent"]
    fresh = SampleStage(sample.settings)
    fresh.setup()
    real = type(fresh._sampler).sample

    def limited(self, *args, **kwargs):
        if not isinstance(self.network, LayerOffload):
            raise torch.OutOfMemoryError("made up: no GPU here")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(fresh._sampler), "sample", limited)
    chunk = fresh(encoded)
    words = "rows 1 instead of 4 after out of memory; weights in host memory after out of memory"
    assert chunk.column("degradations") == [words] * 3
    torch.testing.assert_close(chunk.tensors["latent"], expected, rtol=1e-4, atol=1e-4)

    def full(self, *args, **kwargs):
        raise torch.OutOfMemoryError("made up: no GPU here")

    monkeypatch.setattr(type(fresh._sampler), "sample", full)
    words = r"out of memory with 1 clips at once.*host memory.*a card of 6 GB.*--preset card-6gb"
    with pytest.raises(SamplingError, match=words):
        fresh(encoded)


def test_weights_that_cannot_leave_the_device_fail_with_the_flags_that_let_them(
    info: ModelInfo, stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sample, _ = stages
    encoded = encode(chunk_of(info, [[0], [0], [1]]))
    fresh = SampleStage(sample.settings)
    fresh.setup()
    fresh.settings = dataclasses.replace(sample.settings, precision="float8")

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("made up: no GPU here")

    monkeypatch.setattr(type(fresh._sampler), "sample", full)
    advice = r"leave out --precision float8.*--offload layers --rows 1"
    with pytest.raises(SamplingError, match=advice) as failed:
        fresh(encoded)
    assert "with its weights in host memory" not in str(failed.value)
    monkeypatch.setattr(sample_module, "load_model", full)
    unloaded = SampleStage(fresh.settings)
    with pytest.raises(SamplingError, match=r"the weights do not fit .*--offload layers --rows 1"):
        unloaded.setup()


def test_what_fits_is_named_by_its_flags(stages) -> None:
    settings, full = stages[1].settings, released_network("1.0")
    cell, own = GridCell(rows=1, frames=360, tokens=64), int(4.5 * 2**30)
    named = card_that_fits(settings, full, cell, "bfloat16", own)
    assert "a card of 6 GB or more with --preset card-6gb, ask for clips below 12 s" in named
    named = card_that_fits(settings, full, cell, "bfloat16", 2 * own)
    assert "--preset card-10gb" in named
    assert card_that_fits(settings, full, cell, "bfloat16", 2**40).startswith("ask for clips below")
    split = dataclasses.replace(settings, split=SplitConfig(way="heads", size=2))
    assert "leave out --split heads:2 and take --offload layers --rows 1" in flags_that_fit(split)


def test_offloaded_weights_give_the_same_bits(info: ModelInfo, stages) -> None:
    encode, sample, _ = stages
    encoded = encode(chunk_of(info, [[0], [0], [1]]))
    offloaded = SampleStage(dataclasses.replace(sample.settings, offload="layers"))
    offloaded.setup()
    found = offloaded(encoded)
    assert torch.equal(found.tensors["latent"], sample(encoded).tensors["latent"])
    assert found.column("degradations") == [""] * 3


def test_what_exact_rules_out_fails_instead(
    info: ModelInfo, stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sample, _ = stages
    fresh = SampleStage(dataclasses.replace(sample.settings, exact=True))
    fresh.setup()
    encoded = encode(chunk_of(info, [[0], [0], [1]]))
    context = encoded.tensors["context"].clone()
    context[1] = float("nan")
    sampled = fresh(encoded.with_tensors({**encoded.tensors, "context": context}))
    assert sampled.column("error_code") == [None, "not_finite", None]
    assert sampled.column("degradations") == [""] * 3
    assert fresh._float32 is None

    def full(self, *args, **kwargs):
        raise torch.OutOfMemoryError("made up: no GPU here")

    monkeypatch.setattr(type(fresh._sampler), "sample", full)
    failed = fresh(encoded)
    assert failed.column("error_code") == ["not_exact"] * 3
    assert "out of memory in the cell" in failed.column("error")[0]


def test_noise_of_a_gpu_needs_one(stages) -> None:
    fresh = SampleStage(dataclasses.replace(stages[1].settings, noise="gpu"))
    with pytest.raises(ConfigError, match="noise is drawn on a GPU, but the network is on cpu"):
        fresh.setup()
