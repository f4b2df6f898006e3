"""Several local steps as one gradient, taken between the model sent and the one received."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsim.capture import Observation
from fedsim.types import Tensors

_RATE = 1e-3
"""Adam's learning rate for the interpolation between the two models."""


class SurrogateModel:
    """SME (Zhu et al. 2023): ``sent + share (received - sent)``, ``share`` learned by Adam.

    A step of the client's path adds the gradient at that point; the surrogate takes them all at
    one point of the straight line, which is found along with the guess. Starts in the middle, stays
    in [0, 1].

    Attributes:
        share: scalar, 0 at the model sent and 1 at the one received.
    """

    def __init__(self, observation: Observation, like: Tensor) -> None:
        self._sent = {name: observation.sent[name].to(like) for name in observation.received}
        self._moved = {
            name: value.to(like) - self._sent[name]
            for name, value in observation.received.items()
            if value.is_floating_point()
        }
        self.share = torch.full((), 0.5, dtype=like.dtype, device=like.device, requires_grad=True)
        self._optimizer = torch.optim.Adam([self.share], lr=_RATE)

    def parameters(self) -> Tensors:
        """The parameters between the two."""
        return {name: self._sent[name] + self.share * by for name, by in self._moved.items()}

    @torch.no_grad()
    def step(self, slope: Tensor) -> None:
        """Move the share against the slope of the objective."""
        self.share.grad = slope
        self._optimizer.step()
        self.share.clamp_(0, 1)
