"""What every test may lean on: quiet single-threaded processes, a private Ray, the shared files.

It knows how to start a Ray that no other Ray of the machine can meet. It imports neither torch nor
ray at collection, so that `pytest tests/<room>` of a maths room stays quick.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

REPO = Path(__file__).resolve().parent.parent

# Read by torch, numpy and Ray when they start, and inherited by every process that a test starts.
# One thread each: more would make the two-core default run slower and its timings noisy.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}
if not Path("/dev/nvidia0").exists():
    # Without a GPU, Triton's kernels run in its interpreter. It asks when it is first imported,
    # which a folder's own conftest may do before pytest is configured.
    os.environ["TRITON_INTERPRET"] = "1"
_OBJECT_STORE_BYTES = 256 * 1024 * 1024
_RAY_DIR = pytest.StashKey[str]()
_RAY_IS_OURS = pytest.StashKey[bool]()

# The same examples in every run, however slow the machine is.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before any test module is imported, with a Ray folder of this run's own.

    The folder is short because Ray's socket paths below it must stay under 107 bytes, and private
    because Ray finds a running cluster through an address file in it.
    """
    os.environ.update(_ENVIRONMENT)
    os.environ.pop("RAY_ADDRESS", None)
    # What worker processes are told to import by name.
    by_name = [str(REPO / "tests" / "engine" / "evaluate"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, by_name))
    config.stash[_RAY_DIR] = tempfile.mkdtemp(prefix="hmr", dir="/tmp")
    os.environ["RAY_TMPDIR"] = config.stash[_RAY_DIR]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's Ray folder."""
    shutil.rmtree(config.stash[_RAY_DIR], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Where two processes run the tests, keep all that start a Ray in one, other modules whole.

    Two Rays at once on two cores would keep each other waiting until a start gives up.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return "ray" if _starts_ray(module) else module

    return OneRay(config, log)


@functools.cache
def _starts_ray(module: str) -> bool:
    return "pytest.mark.ray" in (REPO / module).read_text("utf-8")


def _start_ray() -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="error",
    )


@pytest.fixture(scope="module")
def no_session_ray() -> Iterator[None]:
    """Put the session's Ray away for a module that joins clusters of its own."""
    import ray

    was_there = ray.is_initialized()
    ray.shutdown()
    yield
    ray.shutdown()
    if was_there:
        _start_ray()


@pytest.fixture(scope="session", name="ray")
def ray_session(pytestconfig: pytest.Config) -> Iterator[ModuleType]:
    """Give the `ray` module, connected to a local four-CPU Ray that the whole session shares."""
    import ray

    _start_ray()
    pytestconfig.stash[_RAY_IS_OURS] = True
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def no_stray_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that is not marked `ray` and yet started one.

    Many calls of ray start a cluster when there is none, so that code meant to run without Ray can
    start one unnoticed, slowly, and in the way of the session's own.
    """
    yield
    ray = sys.modules.get("ray")
    if ray is None or request.config.stash.get(_RAY_IS_OURS, False):
        return
    if ray.is_initialized() and request.node.get_closest_marker("ray") is None:
        ray.shutdown()
        pytest.fail("this test started a Ray by itself; what it calls is meant to run without one")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Give the folder of third-party sample files; the test is skipped where there is none."""
    folder = (REPO / os.environ.get("HYMOTION_SHARED", "../shared")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no shared sample files at {folder}; set HYMOTION_SHARED to their folder")
    return folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a small random model with a real static encoder."""
    import torch

    import hymotion_ray
    from hymotion_ray.config import ModelConfig, NetworkConfig, SamplingConfig, TextConfig
    from hymotion_ray.formats.models.checkpoint import Checkpoint, write_model
    from hymotion_ray.model.mmdit import MotionMMDiT
    from hymotion_ray.text.static import StaticEncoder

    text = Path(hymotion_ray.__file__).parent / "assets" / "tiny" / "text"
    encoder = StaticEncoder(text)
    network = NetworkConfig(
        feat_dim=32,
        num_layers=3,
        num_heads=2,
        ctxt_input_dim=encoder.context_dim,
        vtxt_input_dim=encoder.vector_dim,
        mask_mode="narrowband",
        time_factor=1000.0,
        apply_rope_to_single_branch=False,
    )
    config = ModelConfig(
        network=network,
        name="random",
        licence="none",
        text=TextConfig(kind="static"),
        sampling=SamplingConfig(num_steps=4, guidance_scale=2.0),
    )
    torch.manual_seed(0)
    weights = MotionMMDiT(network, config.train_frames).state_dict()
    std = torch.full((201,), 0.1)
    mean = torch.zeros(201)
    mean[3:135] = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(22)
    folder = tmp_path_factory.mktemp("models") / "random"
    write_model(
        Checkpoint(
            config=config,
            network=weights,
            null_vtxt_feat=torch.randn(1, 1, encoder.vector_dim),
            null_ctxt_input=torch.randn(1, 1, encoder.context_dim),
            mean=mean,
            std=std,
        ),
        folder,
    )
    shutil.copytree(text, folder / "text", dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny Qwen3 model."""
    from tiny_models import save_qwen3

    return save_qwen3(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny CLIP model."""
    from tiny_models import save_clip

    return save_clip(tmp_path_factory.mktemp("models") / "clip")
