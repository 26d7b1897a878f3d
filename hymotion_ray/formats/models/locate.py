"""Where a model lies: built in, a folder or file of the user's, or a hub. Opens no weights."""

from __future__ import annotations

from pathlib import Path

from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.models.checkpoint import CONFIG_FILE

BUILT_IN = ("tiny",)
HUB_PREFIX = "hf:"
_ASSETS = Path(__file__).resolve().parents[2] / "assets"


def model_folder(model: str | Path) -> Path:
    """The local folder (or safetensors file) of a model: built in, given, or fetched by `hf:`.

    The hub is contacted for `hf:` alone, and only for what its cache lacks. Raises
    `CheckpointError` when there is no such model.
    """
    if not isinstance(model, (str, Path)) or not str(model):
        raise CheckpointError(
            f"model is {model!r:.60}; allowed: {', '.join(BUILT_IN)}, a model folder, or "
            "hf:REPO@REVISION"
        )
    if isinstance(model, str) and model.startswith(HUB_PREFIX):
        from hymotion_ray.formats.models.hub import fetch

        return fetch(model)
    if model in BUILT_IN:
        folder = _ASSETS / str(model)
        if not (folder / CONFIG_FILE).exists():
            raise CheckpointError(
                f"the built-in model {model!r} is not part of this installation ({folder} has no "
                f"{CONFIG_FILE}); install hymotion-ray again, or give a model folder"
            )
        return folder
    path = Path(model).expanduser()
    if "\0" in str(model) or not path.exists():
        raise CheckpointError(
            f"there is no model {str(model)!r}: no such folder, and the built-in models are "
            f"{', '.join(BUILT_IN)}. Give a release folder (config.yml and latest.ckpt), a "
            "converted folder, or hf:REPO@REVISION"
        )
    return path
