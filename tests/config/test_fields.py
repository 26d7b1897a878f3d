"""Configs from outside: what is converted, what is refused, and messages that stay short."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hymotion_ray.config import ModelConfig, NetworkConfig, SamplingConfig
from hymotion_ray.config.fields import from_mapping, override, shown, to_mapping
from hymotion_ray.errors import ConfigError

SIZES = {
    "feat_dim": 8,
    "num_layers": 3,
    "num_heads": 2,
    "ctxt_input_dim": 4,
    "vtxt_input_dim": 4,
}


def test_a_config_comes_back_from_its_mapping() -> None:
    config = ModelConfig(network=NetworkConfig(**SIZES), sampling=SamplingConfig(num_steps=3))
    assert from_mapping(ModelConfig, to_mapping(config)) == config


def test_numbers_of_other_libraries_become_pythons() -> None:
    values = {"num_steps": np.int64(3), "guidance_scale": np.float32(2.0)}
    config = from_mapping(SamplingConfig, values)
    assert config == SamplingConfig(num_steps=3, guidance_scale=2.0)
    assert [type(config.num_steps), type(config.guidance_scale)] == [int, float]


@pytest.mark.parametrize("value", [True, 2.0, "2", None, [2], pytest.param(10**5000, id="huge")])
def test_what_is_no_step_count_is_refused_in_a_short_message(value: Any) -> None:
    with pytest.raises(ConfigError, match="num_steps") as caught:
        from_mapping(SamplingConfig, {"num_steps": value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [True, "2", None, 10**400, math.nan, math.inf, -1])
def test_what_is_no_guidance_scale_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="guidance_scale"):
        from_mapping(SamplingConfig, {"guidance_scale": value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0) for name in SIZES),
        *((name, 3 * 10**30) for name in SIZES),
        ("refiner_num_layers", 10**9),
        ("mlp_ratio", 1e99),
        ("mlp_ratio", math.nan),
        ("narrowband_length", math.inf),
        ("time_factor", math.nan),
        ("mask_mode", "nobody"),
    ],
)
def test_a_network_that_cannot_be_is_refused_before_anything_is_made(
    field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=field):
        NetworkConfig(**{**SIZES, field: value})


@pytest.mark.parametrize("field", ["name", "licence"])
@pytest.mark.parametrize("value", ["", "two\nlines", "nul\0", "\ud800", "x" * 1001], ids=range(5))
def test_labels_that_outputs_could_not_carry_are_refused(field: str, value: str) -> None:
    network = NetworkConfig(**SIZES)
    with pytest.raises(ConfigError, match=field):
        ModelConfig(network=network, **{field: value})


def test_a_value_of_any_size_is_shown_in_a_line() -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]  # 2^60 brackets when printed in full
    for value in (nested, "x" * 10**6, 10**5000, {i: i for i in range(10**5)}, object()):
        assert len(shown(value)) < 300


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    assert override(ModelConfig(network=NetworkConfig(**SIZES)), ["name=2"]).name == "2"


def test_overrides_name_their_section_and_the_nearest_field() -> None:
    config = ModelConfig(network=NetworkConfig(**SIZES))
    changed = override(config, ["sampling.num_steps=7", "name=mine", "network.qkv_bias=false"])
    assert (changed.sampling.num_steps, changed.name, changed.network.qkv_bias) == (
        7,
        "mine",
        False,
    )
    with pytest.raises(ConfigError, match="did you mean 'num_steps'"):
        override(config, ["sampling.num_step=7"])
    with pytest.raises(ConfigError, match="is a value, not a section"):
        override(config, ["name.x=1"])
    with pytest.raises(ConfigError, match="lacks '='"):
        override(config, ["name"])
