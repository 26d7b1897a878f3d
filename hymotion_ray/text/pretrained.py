"""Loading Qwen3 and CLIP weights onto the device asked for. Knows transformers; no prompt.

Imported only when such an encoder is loaded, since it imports transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig, CLIPTextModel, Qwen3Model
from transformers.utils import logging

from hymotion_ray.config.text import TextPlacement
from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.int8 import quantise
from hymotion_ray.text.local_model import require_package

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_qwen3(folder: Path, placement: TextPlacement) -> Qwen3Model:
    """The language model without its output head, in eval mode, placed as asked."""
    check_device(placement.device)
    require_package("accelerate", "hymotion-ray[text]", "placing the language model")
    if placement.number_format == "int8":
        return _load_int8(folder, placement)
    options: dict[str, Any] = {"device_map": {"": placement.device}}
    if placement.offloads:
        options["device_map"] = "auto"
        options["max_memory"] = _memory_limits(placement)
        options["offload_folder"] = placement.offload_folder
    if placement.number_format in FORMATS:
        options["dtype"] = FORMATS[placement.number_format]
    else:
        require_package("bitsandbytes", "bitsandbytes", f"precision {placement.number_format}")
        options["dtype"] = torch.float32 if placement.device == "cpu" else torch.bfloat16
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=options["dtype"]
        )
    return _from_pretrained(Qwen3Model, folder, options)


def _load_int8(folder: Path, placement: TextPlacement) -> Qwen3Model:
    """In host memory as it is stored, made int8 there, then moved: a card never holds it whole."""
    if placement.offloads:
        raise TextEncoderError(
            "the text encoder is to be int8 and to keep layers elsewhere; allowed: int8 without"
            " max_gpu_memory and max_cpu_memory, or these with another precision"
        )
    model = _from_pretrained(Qwen3Model, folder, {"device_map": {"": "cpu"}, "dtype": "auto"})
    quantise(model, torch.float32 if placement.device == "cpu" else torch.bfloat16)
    return model.to(placement.device)


def load_clip(folder: Path, device: str) -> CLIPTextModel:
    """The CLIP text model in float32 on `device`, in eval mode. It is small; no other format."""
    check_device(device)
    return _from_pretrained(CLIPTextModel, folder, {"dtype": torch.float32}).to(device)


def check_device(device: str) -> None:
    """Raise `TextEncoderError` when torch cannot use `device` here."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise TextEncoderError(
            f"the text encoder is to run on {device!r}, which torch cannot use here ({error}); "
            "use device 'cpu', or run where that device is"
        ) from error


def _memory_limits(placement: TextPlacement) -> dict[int | str, str | int]:
    limits: dict[int | str, str | int] = {}
    if placement.device != "cpu":
        index = torch.device(placement.device).index or 0
        free = torch.cuda.mem_get_info(index)[0] if torch.cuda.is_available() else 0
        limits[index] = placement.max_gpu_memory or free
    limits["cpu"] = placement.max_cpu_memory or "1000GiB"
    return limits


def _from_pretrained(model_class: Any, folder: Path, options: dict[str, Any]) -> Any:
    """A model from `folder` with every weight read from it; anything else is an error."""
    try:
        with _quiet_library():
            model, report = model_class.from_pretrained(
                str(folder),
                local_files_only=True,
                use_safetensors=True,
                attn_implementation="sdpa",
                output_loading_info=True,
                **options,
            )
    except torch.OutOfMemoryError as error:
        raise TextEncoderError(
            f"the text encoder in {folder} does not fit into the device's memory ({error}); set "
            "max_gpu_memory to keep layers in CPU memory, precision int8 or 4bit, or device cpu"
        ) from error
    except Exception as error:  # the library's readers raise many kinds
        raise TextEncoderError(
            f"the text encoder in {folder} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    absent = [*report["missing_keys"], *report.get("mismatched_keys", ())]
    if absent:
        raise TextEncoderError(
            f"the weights in {folder} lack {len(absent)} tensors that its config.json asks for, or "
            f"have them in another shape: {', '.join(sorted(map(str, absent))[:5])}; copy the "
            "folder again"
        )
    return model.eval()


@contextlib.contextmanager
def _quiet_library() -> Iterator[None]:
    """Keep the library from listing weights it leaves out (output head, CLIP's image half)."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
