"""Flow matching: path, guidance, solvers, sampler and loss. Takes the network as an object."""

from hymotion_ray.flow.loss import flow_matching_loss
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import Sampler, nonfinite_rows

__all__ = ["Row", "Sampler", "flow_matching_loss", "nonfinite_rows"]
