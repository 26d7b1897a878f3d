"""Stage: texts -> conditions. Wraps `hymotion_ray.text`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from hymotion_ray.engine.device import device_of_this_process, set_threads
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.text.encoder import TextEncoder
from hymotion_ray.text.load import load_encoder


@dataclass
class EncodeStage:
    """Each distinct text of a chunk once, whatever its seeds.

    Adds the columns `prompt_row` (row of the condition) and `truncated` (encoders that cut the
    text); tensors: context (P, N, C), vector (P, 1, V), length (P,).
    """

    settings: StageSettings
    name: str = "encode"
    _encoder: TextEncoder | None = field(default=None, init=False)

    def setup(self) -> None:
        """Load the encoder."""
        settings = self.settings
        device = device_of_this_process()
        if device == "cpu":
            set_threads(settings.cpu_threads)
        self._encoder = load_encoder(
            settings.text_config,
            settings.model,
            placement=replace(settings.text, device=device),
            llm_path=settings.llm_path,
            clip_path=settings.clip_path,
            template=settings.template,
            expected_context_dim=settings.ctxt_input_dim,
            expected_vector_dim=settings.vtxt_input_dim,
        )

    def __call__(self, chunk: Chunk) -> Chunk:
        """Encode the living items of a chunk."""
        assert self._encoder is not None, "setup runs before the first call"
        texts = chunk.column("text")
        alive = chunk.alive
        rows: dict[str, int] = {}
        for index in alive:
            rows.setdefault(texts[index], len(rows))
        condition = self._encoder.encode(list(rows))
        living = set(alive)
        prompt_row = [rows[text] if i in living else None for i, text in enumerate(texts)]
        return chunk.with_columns(
            {
                "prompt_row": pa.array(prompt_row, pa.int32()),
                "truncated": pa.array(
                    [None if r is None else condition.truncation(r) for r in prompt_row],
                    pa.string(),
                ),
            }
        ).with_tensors(
            {
                "context": condition.context.cpu(),
                "vector": condition.vector.cpu(),
                "length": condition.length.cpu(),
            }
        )
