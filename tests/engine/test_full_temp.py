"""A temporary folder that is full is told as such."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.render.job import run_job
from hymotion_ray.engine.worklist import Worklist
from hymotion_ray.errors import OutputError


def test_a_full_temporary_folder_is_named(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Worklist.__init__

    def small(self, path: Path, best_of: int = 1) -> None:
        real(self, path, best_of)
        self._connection.execute("PRAGMA max_page_count = 20")

    monkeypatch.setattr(Worklist, "__init__", small)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"A person walks {n} steps.#30#c{n}\n" for n in range(20_000)))
    config = RenderConfig(
        prompts=(str(prompts),), model=str(random_model), out=str(tmp_path / "out")
    )
    with pytest.raises(OutputError, match=r"list of work in .* TMPDIR") as caught:
        run_job(config, lambda line: None)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert not (tmp_path / "out").exists()
