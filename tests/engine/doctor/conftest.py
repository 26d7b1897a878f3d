"""What an ill node has in place of what the others have."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The share that all nodes mount, and the folder that the ill node has in its place."""
    folder = tmp_path_factory.mktemp("mounts")
    (folder / "share").mkdir()
    (folder / "stale").mkdir()
    return folder


@pytest.fixture(scope="module")
def old_packages(tmp_path_factory):
    """A folder in which torch is of another version, as far as its metadata goes."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "torch-1.9.0.dist-info").mkdir()
    (folder / "torch-1.9.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 1.9.0\n"
    )
    return folder
