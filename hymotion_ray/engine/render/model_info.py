"""What the driver of a render job knows of the model, without building it. Ray-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hymotion_ray.api import model_folder
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.model import ModelConfig
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.config.sampling import FLOAT8_WORDS, SamplingConfig
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.formats.models.checkpoint import read_model
from hymotion_ray.formats.models.weight_count import count_weights
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton
from hymotion_ray.text.encoder import TokenCounter
from hymotion_ray.text.load import encoder_fingerprint, load_token_counter


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Config, fingerprints, decoder and token counts of a model."""

    config: ModelConfig
    """What the model is."""
    path: Path
    """Its folder, as every node sees it."""
    template: str | None
    """Its prompt template."""
    fingerprint: str
    """Hash of the weights, statistics and config."""
    encoder_fingerprint: str
    """Hash of the text encoder."""
    token_counter: TokenCounter
    """Counts context tokens."""
    skeleton: Skeleton
    """The body that motions are for: the model's own, or the generic one."""
    decoder: Decoder
    """Turns latents into motions."""
    encoder_weights: int
    """Numbers in the text encoder's files; 0 for one that is small."""
    network_weights: int
    """Numbers in the network."""
    sampling: SamplingConfig
    """The model's defaults with the job's own settings over them."""

    @classmethod
    def read(cls, config: RenderConfig) -> ModelInfo:
        """Read and check the model and its text encoder's files; weights do not stay in memory."""
        path = model_folder(config.model)
        held = read_model(path)
        skeleton = held.skeleton or generic_skeleton()
        folder = path if path.is_dir() else path.parent
        counter = load_token_counter(
            held.config.text, folder, llm_path=config.llm_path, template=held.prompt_template
        )
        return cls(
            config=held.config,
            path=path,
            template=held.prompt_template,
            fingerprint=held.fingerprint,
            encoder_fingerprint=encoder_fingerprint(
                held.config.text,
                folder,
                placement=config.text,
                llm_path=config.llm_path,
                clip_path=config.clip_path,
                template=held.prompt_template,
            ),
            token_counter=counter,
            skeleton=skeleton,
            decoder=Decoder(held.mean, held.std, skeleton, mesh=held.mesh, fps=held.config.fps),
            encoder_weights=sum(
                count_weights(Path(folder))
                for folder in (
                    config.llm_path or held.config.text.llm_path,
                    config.clip_path or held.config.text.clip_path,
                )
                if folder
            ),
            network_weights=sum(tensor.numel() for tensor in held.network.values()),
            sampling=config.sampling_over(held.config.sampling),
        )

    def approximation(self, config: RenderConfig) -> str:
        """What makes the job's clips approximate, in words that outputs carry; "" when exact.

        Step count and guidance scale are each row's own, and not counted here.
        """
        method = self.sampling.method
        words = [f"{method} solver"] if method != self.config.sampling.method else []
        words += self.sampling.shortcuts
        return "; ".join([*words, *([FLOAT8_WORDS] if config.precision == "float8" else [])])

    def folder_settings(self, config: RenderConfig) -> dict[str, Any]:
        """What an output folder of this job belongs to."""
        return {
            "model": self.fingerprint,
            "model_name": self.config.name,
            "text_encoder": self.encoder_fingerprint,
            "num_steps": self.sampling.num_steps,
            "guidance_scale": self.sampling.guidance_scale,
            "method": self.sampling.method,
            "precision": config.precision,
            "best_of": config.best_of,
            "layout": config.layout,
            "axis": config.axis,
            # Only where asked for, so that folders without them stay what they are.
            **({"exact": config.exact} if config.exact is not None else {}),
            **({"split": str(config.split)} if config.exact and config.split else {}),
            **({"noise": config.noise} if config.noise != "cpu" else {}),
            **({"shortcuts": list(shortcuts)} if (shortcuts := self.sampling.shortcuts) else {}),
        }

    def stage_settings(
        self, config: RenderConfig, grid: Grid, *, out: str, hashed_folders: bool
    ) -> StageSettings:
        """What the stages need to know."""
        return StageSettings(
            model=str(self.path),
            model_name=self.config.name,
            licence=self.config.licence,
            fps=self.config.fps,
            skeleton=self.skeleton,
            text_config=self.config.text,
            template=self.template,
            text=config.text,
            ctxt_input_dim=self.config.network.ctxt_input_dim,
            vtxt_input_dim=self.config.network.vtxt_input_dim,
            sampling=self.sampling,
            approximation=self.approximation(config),
            precision=config.precision,
            noise=config.noise,
            split=config.split,
            offload=config.offload,
            exact=config.exact is not None,
            grid=grid,
            cpu_threads=config.resources.cpu_threads,
            llm_path=config.llm_path,
            clip_path=config.clip_path,
            out=out,
            formats=config.all_formats,
            axis=config.axis,
            layout=config.layout,
            hashed_folders=hashed_folders,
        )


def default_grid(resources: ResourceConfig, has_gpus: bool, most: int | None = None) -> Grid:
    """The cells of a new folder, before it is fitted to its prompts; `most` rows fit the GPUs."""
    if not has_gpus:
        return Grid.on_device("cpu", resources.rows)
    return Grid.on_device("cuda", resources.rows or most)
