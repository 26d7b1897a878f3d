"""What a run starts from: a preset's new network, or the weights of a model. Ray-free.

Knows presets, models on disk and the dataset's body and statistics. Trains nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from hymotion_ray.config.training import TrainConfig
from hymotion_ray.config.training_presets import preset_model
from hymotion_ray.engine.train.checkpoints import state_of
from hymotion_ray.engine.train.examples import CONSTANT_STD, ExampleRules
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.models.checkpoint import TEXT_FOLDER, Checkpoint, read_model
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.formats.shards import Dataset
from hymotion_ray.model.init import initialise
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton
from hymotion_ray.text.static import StaticEncoder

_STATIC_SOURCE = "tiny"
"""Built-in model whose word vectors presets with a static encoder train on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """All of a model but what training will make of its weights."""

    base: Checkpoint
    """Config, statistics, body and text encoder; the weights of `--init`, or none."""
    has_weights: bool

    @property
    def skeleton(self) -> Skeleton:
        """The body whose motions are learned."""
        return self.base.skeleton or generic_skeleton()

    def rules(self, config: TrainConfig, dataset: Dataset) -> ExampleRules:
        """How clips become examples for this model."""
        model = self.base.config
        return ExampleRules(
            seed=config.seed,
            data=config.input,
            objective=config.objective,
            cond_mask_prob=model.cond_mask_prob,
            mean=self.base.mean.float().numpy(),
            std=self.base.std.float().numpy(),
            made_for=dataset.skeleton,
            skeleton=self.skeleton,
            context_dim=model.network.ctxt_input_dim,
            vector_dim=model.network.vtxt_input_dim,
            null_tokens=int(model.enable_ctxt_null_feat),
        )

    def build(self, config: TrainConfig) -> FlowModel:
        """The model to train, on the CPU: its weights come from the seed, or from `--init`."""
        moving = torch.ones(len(self.base.std), dtype=torch.bool)
        if config.objective.ignore_constant:
            moving = self.base.std >= CONSTANT_STD
        torch.manual_seed(config.seed)
        model = FlowModel(self.base.config, moving)
        if self.has_weights:
            model.load_state_dict(state_of(self.base))
        else:
            initialise(model.network, config.seed)
        return model


def find_origin(config: TrainConfig, dataset: Dataset) -> Origin:
    """What `config` starts from.

    Raises `ConfigError` for a preset that needs a model to start from, `CheckpointError` and
    `InputError` for a model or dataset that cannot be read.
    """
    if config.init is not None:
        base = read_model(model_folder(config.init))
        return Origin(base=_with_paths(base, config), has_weights=True)
    folder = model_folder(_STATIC_SOURCE)
    model = preset_model(config.preset, StaticEncoder(folder / TEXT_FOLDER).context_dim)
    if model is None:
        raise ConfigError(
            f"preset {config.preset!r} starts from a model and --init names none; allowed: a"
            " release or converted folder, a checkpoint, or tiny"
        )
    stats, skeleton = dataset.stats(), dataset.skeleton
    base = Checkpoint(
        config=model,
        network={},
        null_vtxt_feat=torch.zeros(1, 1, model.network.vtxt_input_dim),
        null_ctxt_input=torch.zeros(1, 1, model.network.ctxt_input_dim),
        mean=torch.from_numpy(stats.mean.astype(np.float32)),
        std=torch.from_numpy(stats.std.astype(np.float32)),
        skeleton=None if skeleton.same_as(generic_skeleton()) else skeleton,
        folder=folder if model.text.kind == "static" else None,
    )
    return Origin(base=_with_paths(base, config), has_weights=False)


def _with_paths(base: Checkpoint, config: TrainConfig) -> Checkpoint:
    """`base` that remembers where its text encoder's models are, as `import` does."""
    own = base.config.text
    text = dataclasses.replace(
        own,
        llm_path=config.llm_path or own.llm_path,
        clip_path=config.clip_path or own.clip_path,
    )
    return dataclasses.replace(base, config=dataclasses.replace(base.config, text=text))
