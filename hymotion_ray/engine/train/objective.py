"""The objective: the network with its learned null features, and the loss of each clip.

Knows flow matching (docs/network.md: noise at t = 0, data at t = 1, the network predicts the
velocity `data - noise` at a point between, SmoothL1 over valid frames) and the condition dropped
now and then. Does not know where batches come from or how losses are weighted.

Shapes: B rows, L frames, N text tokens, C context width, V vector width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hymotion_ray.config.model import ModelConfig
from hymotion_ray.flow.loss import clip_losses
from hymotion_ray.flow.path import interpolate, target
from hymotion_ray.model.mmdit import MotionMMDiT

_INIT_STD = 0.02
NETWORK_PREFIX = "network."
"""What stands before the network's published names in this module's state."""


class FlowModel(nn.Module):
    """The network with its learned null features, and the losses of one batch.

    moving: (201,) bool, features that count. Those that never move decode to their mean whatever
    the network says, so they may cost nothing: a narrow network need not carry their noise through.
    """

    moving: Tensor

    def __init__(self, config: ModelConfig, moving: Tensor) -> None:
        super().__init__()
        self.register_buffer("moving", moving, persistent=False)
        network = config.network
        self.network = MotionMMDiT(network, config.train_frames)
        self.null_vtxt_feat = nn.Parameter(_INIT_STD * torch.randn(1, 1, network.vtxt_input_dim))
        self.null_ctxt_input = nn.Parameter(
            _INIT_STD * torch.randn(1, 1, network.ctxt_input_dim),
            # One that is never used must not be waited for by processes that share gradients.
            requires_grad=config.enable_ctxt_null_feat,
        )
        self.drops_context = config.enable_ctxt_null_feat

    def forward(
        self,
        x: Tensor,
        length: Tensor,
        context: Tensor,
        vector: Tensor,
        context_length: Tensor,
        noise: Tensor,
        t: Tensor,
        drop: Tensor,
    ) -> Tensor:
        """Losses (B,) fp32 of normalised clips x (B, L, 201) with noise (B, L, 201) at t (B,).

        length (B,) frames; context (B, N, C), vector (B, 1, V) and context_length (B,) the text's
        features; drop (B,) bool marks rows that get the null condition instead of their own.
        """
        drop_B11 = drop[:, None, None]
        vector = torch.where(drop_B11, self.null_vtxt_feat, vector)
        if self.drops_context:
            context = torch.where(drop_B11, self.null_ctxt_input, context)
        x_t = interpolate(noise, x, t)
        pred = self.network(x_t, context, vector, t, length, context_length)
        velocity = target(noise, x)
        return clip_losses(torch.where(self.moving, pred, velocity), velocity, length)
