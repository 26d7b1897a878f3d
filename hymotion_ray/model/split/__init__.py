"""One network computed by several processes: its heads, its rows or its layers split among them.

Every process runs the same sampler on the same inputs and gets the same velocities; only the work
inside a velocity is shared out. So a sampler needs to know nothing of it.
"""

from hymotion_ray.model.split.heads import split_heads
from hymotion_ray.model.split.layers import LayerSplit, balance, balance_bytes
from hymotion_ray.model.split.rows import RowSplit
from hymotion_ray.model.split.wire import Wire

__all__ = ["LayerSplit", "RowSplit", "Wire", "balance", "balance_bytes", "split_heads"]
