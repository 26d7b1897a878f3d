"""The `config.yml` of a release folder, to and from `ModelConfig`. Knows no weights.

Class paths in it are strings of the released code base: the known ones are mapped, any other is
refused by name, and nothing is imported by them. An unknown key under `network_module_args` is an
error, since it may change what the network computes; elsewhere it is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hymotion_ray.config import ModelConfig, NetworkConfig, SamplingConfig, TextConfig
from hymotion_ray.config.fields import coerce, from_mapping, nearest, shown, to_mapping
from hymotion_ray.errors import CheckpointError, ConfigError
from hymotion_ray.formats.local_file import require_file

OWN_KEY = "hymotion_ray"
"""Top-level key under which our exports keep what the released form has no place for."""

_CLASSES = {
    "network_module": "hymotion/network/hymotion_mmdit.HunyuanMotionMMDiT",
    "train_pipeline": "hymotion/pipeline/motion_diffusion.MotionFlowMatching",
    "text_refiner_module": "hymotion/network/token_refiner.SingleTokenRefiner",
    "final_layer_module": "hymotion/network/encoders.FinalLayer",
    "text_encoder_module": "hymotion/network/text_encoders/text_encoder.HYTextModel",
}
# Fields of NetworkConfig that stand under the same name in `network_module_args`.
_NETWORK_FIELDS = (
    *("input_dim", "ctxt_input_dim", "vtxt_input_dim", "feat_dim", "num_layers", "num_heads"),
    *("mlp_ratio", "mask_mode", "narrowband_length", "insert_start_token"),
    *("with_long_skip_connection", "apply_rope_to_single_branch", "time_factor", "qkv_bias"),
)
# Keys with one value that this network has; any other value is another network.
_FIXED = {"qk_norm_type": "rms", "mlp_act_type": "gelu_tanh"}
_SECTIONS = {
    "text_refiner_cfg": ("num_layers",),
    "final_layer_cfg": ("act_type",),
}
_NETWORK_KEYS = (
    *_NETWORK_FIELDS,
    *_FIXED,
    *_SECTIONS,
    *("dropout", "text_refiner_module", "final_layer_module"),
)
# Fields of SamplingConfig: the section and key under `train_pipeline_args`.
_SAMPLING_KEYS = {
    "num_steps": ("infer_noise_scheduler_cfg", "validation_steps"),
    "method": ("noise_scheduler_cfg", "method"),
    "guidance_scale": ("test_cfg", "text_guidance_scale"),
}
_PIPELINE_KEYS: dict[str, tuple[str, ...]] = {
    "": ("network_module", "network_module_args", "train_pipeline", "train_pipeline_args", OWN_KEY),
    "train_pipeline_args": (
        *("enable_ctxt_null_feat", "enable_special_game_feat", "infer_noise_scheduler_cfg"),
        *("losses_cfg", "mean_std_dir", "noise_scheduler_cfg", "output_mesh_fps"),
        *("random_generator_on_gpu", "test_cfg", "text_encoder_cfg", "text_encoder_module"),
        *("train_cfg", "train_frames"),
    ),
    "infer_noise_scheduler_cfg": ("validation_steps",),
    "noise_scheduler_cfg": ("method",),
    "losses_cfg": ("recons",),
    "test_cfg": ("mean_std_dir", "text_guidance_scale"),
    "text_encoder_cfg": ("llm_type", "max_length_llm"),
    "train_cfg": ("cond_mask_prob",),
}


def read_release_config(path: Path) -> tuple[ModelConfig, str | None]:
    """The model config of a `config.yml`, and its statistics folder as written (None: not named).

    Raises `CheckpointError` for a file that is not YAML, a class path or network key that is not
    known, and values outside what is allowed; warns of unknown keys elsewhere.
    """
    tree = _read_yaml(path)
    _warn_unknown(path, tree)
    for key in ("network_module", "network_module_args"):
        if key not in tree:
            raise CheckpointError(f"{path} lacks the key {key!r}; is it a release's config.yml?")
    pipeline = _section(path, tree, "train_pipeline_args")
    _warn_absent(path, pipeline)
    for where, key in ((tree, "network_module"), (tree, "train_pipeline")):
        _check_class(path, where, key)
    _check_class(path, pipeline, "text_encoder_module")
    try:
        fields = _pipeline_fields(path, pipeline) | _own_fields(_section(path, tree, OWN_KEY))
        config = ModelConfig(network=_network(path, tree["network_module_args"]), **fields)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    stats_dir = pipeline.get(
        "mean_std_dir", _section(path, pipeline, "test_cfg").get("mean_std_dir")
    )
    if stats_dir is not None and not (isinstance(stats_dir, str) and stats_dir.isprintable()):
        raise CheckpointError(f"{path}: mean_std_dir is {shown(stats_dir)}; allowed: a folder name")
    return config, stats_dir


def write_release_config(config: ModelConfig, path: Path) -> None:
    """Write a `config.yml` that `read_release_config` reads back to an equal config."""
    network, sampling, text = config.network, config.sampling, config.text
    args: dict[str, Any] = {name: getattr(network, name) for name in _NETWORK_FIELDS}
    args["mask_mode"] = None if network.mask_mode == "none" else network.mask_mode
    args["dropout"] = 0.0
    args["text_refiner_cfg"] = {"num_layers": network.refiner_num_layers}
    tree = {
        "network_module": _CLASSES["network_module"],
        "network_module_args": args,
        "train_pipeline": _CLASSES["train_pipeline"],
        "train_pipeline_args": {
            "enable_ctxt_null_feat": config.enable_ctxt_null_feat,
            "enable_special_game_feat": config.enable_special_game_feat,
            "infer_noise_scheduler_cfg": {"validation_steps": sampling.num_steps},
            "losses_cfg": {"recons": {"name": "SmoothL1Loss", "weight": 1.0}},
            "noise_scheduler_cfg": {"method": sampling.method},
            "output_mesh_fps": config.fps,
            "random_generator_on_gpu": False,
            "test_cfg": {
                "mean_std_dir": "./stats/",
                "text_guidance_scale": sampling.guidance_scale,
            },
            "text_encoder_cfg": {"llm_type": "qwen3", "max_length_llm": text.max_context_tokens},
            "text_encoder_module": _CLASSES["text_encoder_module"],
            "train_cfg": {"cond_mask_prob": config.cond_mask_prob},
            "train_frames": config.train_frames,
        },
        OWN_KEY: {"name": config.name, "licence": config.licence, "text": to_mapping(text)},
    }
    path.write_text(yaml.safe_dump(tree, sort_keys=True, allow_unicode=True), "utf-8")


def _read_yaml(path: Path) -> Mapping[str, Any]:
    require_file(path, CheckpointError)
    try:
        tree = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # odd dates, huge numbers
        raise CheckpointError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise CheckpointError(
            f"{path} holds a {type(tree).__name__}; allowed: a mapping with the keys "
            "network_module, network_module_args, train_pipeline, train_pipeline_args"
        )
    return tree


def _section(path: Path, tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under `key`; a missing or empty one is {}."""
    section = tree.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise CheckpointError(f"{path}: {key} is {shown(section)}; allowed: a mapping")
    return section


def _warn_unknown(path: Path, tree: Mapping[str, Any]) -> None:
    pipeline = _section(path, tree, "train_pipeline_args")
    for name, known in _PIPELINE_KEYS.items():
        if name == "":
            section = tree
        elif name == "train_pipeline_args":
            section = pipeline
        else:
            section = _section(path, pipeline, name)
        for key in section:
            if key not in known:
                where = f" under {name}" if name else ""
                warnings.warn(
                    f"{path}: the unknown key {key!r}{where} is ignored{nearest(str(key), known)}",
                    stacklevel=4,
                )


def _warn_absent(path: Path, pipeline: Mapping[str, Any]) -> None:
    """YAML that was cut short is often still YAML, so what is not there is not passed over."""
    absent = [key for key in ("train_frames",) if key not in pipeline]
    absent += [
        f"{section}.{key}"
        for section, key in _SAMPLING_KEYS.values()
        if key not in _section(path, pipeline, section)
    ]
    if absent:
        warnings.warn(
            f"{path} lacks {', '.join(absent)} under train_pipeline_args, and the released models' "
            "values are taken; is the file whole?",
            stacklevel=4,
        )


def _check_class(path: Path, tree: Mapping[str, Any], key: str) -> None:
    value = tree.get(key, _CLASSES[key])
    if value != _CLASSES[key]:
        raise CheckpointError(
            f"{path}: {key} is {shown(value)}, a class this project does not have; "
            f"allowed: {_CLASSES[key]}"
        )


def _network(path: Path, args: Any) -> NetworkConfig:
    if not isinstance(args, dict):
        raise CheckpointError(f"{path}: network_module_args is {shown(args)}; allowed: a mapping")
    _refuse_unknown(path, args, "network_module_args", _NETWORK_KEYS)
    for key in ("text_refiner_module", "final_layer_module"):
        _check_class(path, args, key)
    for name, known in _SECTIONS.items():
        _refuse_unknown(path, _section(path, args, name), f"network_module_args.{name}", known)
    refiner, final = (_section(path, args, name) for name in _SECTIONS)
    fixed = {**{key: args.get(key) for key in _FIXED}, "act_type": final.get("act_type")}
    for key, value in fixed.items():
        allowed = _FIXED.get(key, "silu")
        if value is not None and value != allowed:
            raise CheckpointError(
                f"{path}: {key} is {shown(value)} under network_module_args; allowed: {allowed}"
            )
    fields = {name: args[name] for name in _NETWORK_FIELDS if name in args}
    if fields.get("mask_mode", "none") is None:
        fields["mask_mode"] = "none"
    if "num_layers" in refiner:
        fields["refiner_num_layers"] = refiner["num_layers"]
    return from_mapping(NetworkConfig, fields, "network_module_args")


def _refuse_unknown(
    path: Path, section: Mapping[str, Any], name: str, known: tuple[str, ...]
) -> None:
    for key in section:
        if key not in known:
            raise CheckpointError(
                f"{path}: {name} has the unknown key {key!r}{nearest(str(key), known)} It may "
                "change what the network computes, so it is not ignored"
            )


def _pipeline_fields(path: Path, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelConfig` that stand under `train_pipeline_args`, where they are given."""
    fields: dict[str, Any] = {}
    hints = {"train_frames": int, "enable_ctxt_null_feat": bool, "enable_special_game_feat": bool}
    for key, hint in hints.items():
        if key in pipeline:
            fields[key] = coerce(pipeline[key], hint, key)
    if "output_mesh_fps" in pipeline:
        fields["fps"] = coerce(pipeline["output_mesh_fps"], int, "output_mesh_fps")
    training = _section(path, pipeline, "train_cfg")
    if "cond_mask_prob" in training:
        fields["cond_mask_prob"] = coerce(training["cond_mask_prob"], float, "cond_mask_prob")
    fields["sampling"] = from_mapping(SamplingConfig, _sampling(path, pipeline), "sampling")
    text = _section(path, pipeline, "text_encoder_cfg")
    llm_type = text.get("llm_type", "qwen3")
    if llm_type != "qwen3":
        raise CheckpointError(f"{path}: llm_type is {shown(llm_type)}; allowed: qwen3")
    if "max_length_llm" in text:
        tokens = {"max_context_tokens": text["max_length_llm"]}
        fields["text"] = from_mapping(TextConfig, tokens, "text_encoder_cfg")
    return fields


def _sampling(path: Path, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, (section, key) in _SAMPLING_KEYS.items():
        values = _section(path, pipeline, section)
        if key in values:
            found[name] = values[key]
    return found


def _own_fields(own: Mapping[str, Any]) -> dict[str, Any]:
    """What our own export added; it overrides nothing of the released form but the text encoder."""
    fields: dict[str, Any] = {
        key: coerce(own[key], str, f"{OWN_KEY}.{key}") for key in ("name", "licence") if key in own
    }
    if "text" in own:
        fields["text"] = from_mapping(TextConfig, own["text"], f"{OWN_KEY}.text")
    return fields
