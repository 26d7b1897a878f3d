"""The nodes of the connected cluster: what each has, and whether it is alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ray


@dataclass(frozen=True, kw_only=True)
class Node:
    """One living node."""

    node_id: str
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float]
    """All that the node advertises, by name."""
    kind: str
    """Its GPU or CPU kind as Ray labels it, such as A100; empty where it is not labelled."""


def living_nodes() -> list[Node]:
    """The nodes that are alive, in order of their ids."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            resources = node["Resources"]
            found.append(
                Node(
                    node_id=node["NodeID"],
                    num_cpus=resources.get("CPU", 0.0),
                    num_gpus=resources.get("GPU", 0.0),
                    resources=resources,
                    kind=node["Labels"].get("ray.io/accelerator-type", ""),
                )
            )
    return sorted(found, key=lambda node: node.node_id)
