"""How often a flow integration asks the network, from its settings alone. Knows no tensors.

The rules are those of `flow.guidance` and `flow.solvers`, which a test holds these counts against.
"""

from __future__ import annotations

from hymotion_ray.config.sampling import Method, SamplingConfig

_STAGES: dict[Method, tuple[float, ...]] = {
    "euler": (0.0,),
    "midpoint": (0.0, 1 / 2),
    "rk4": (0.0, 1 / 3, 2 / 3, 1.0),
}
"""Where in a step the solver asks for the velocity, in parts of the step."""
_ROUNDING = 1e-6
"""Times are compared in fp32 where clips are sampled."""


def text_evaluations(sampling: SamplingConfig) -> int:
    """Of the text branch: steps times the solver's stages."""
    return sampling.num_steps * len(_STAGES[sampling.method])


def null_evaluations(sampling: SamplingConfig) -> int | None:
    """Of the null branch in calls of its own; None where each is in one call with the text's.

    Without guidance 0.
    """
    if sampling.guidance_scale <= 1:
        return 0
    if not sampling.shortcuts:
        return None
    first, last = sampling.guidance_interval
    found = guided_steps = 0
    for step in range(sampling.num_steps):
        times = [(step + part) / sampling.num_steps for part in _STAGES[sampling.method]]
        guided = sum(first - _ROUNDING <= t <= last + _ROUNDING for t in times)
        if guided_steps % sampling.null_every == 0:
            found += guided
        guided_steps += guided > 0
    return found
