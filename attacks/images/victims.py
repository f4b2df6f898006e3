"""What image matching searches for, and the loss that it minimises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from attacks.base import Job
from attacks.images.image_losses import ImageLoss
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import Replay
from fedsim.types import Tensors


@dataclass(frozen=True)
class RoundsLoss:
    """The mean over rounds of the matching loss, each at the weights broadcast in that round.

    The temporal objective of TGIAs-RO (Li et al. 2023, arXiv:2306.07883) without its robust
    statistics, which are against rounds that mislead. With what was received in round t being
    ``y_t = g_t + n_t``, g_t the true gradient and n_t noise drawn anew, the mean over R rounds of

        1 - <g_t(x), y_t> / (|g_t(x)| |y_t|)

    has from the noise a standard deviation that falls as ``1 / sqrt(R)``, while what tells the
    truth from another x stays: R rounds of noise std are worth one of ``std / sqrt(R)``.

    Attributes:
        losses: one for each round.
    """

    losses: tuple[ImageLoss, ...]

    @property
    def model(self) -> Replay:
        """Of one of the rounds."""
        return self.losses[0].model

    @property
    def smoother(self) -> float:
        """Factor of the total variation."""
        return self.losses[0].smoother

    def __call__(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """The loss of ``images``, a scalar; what was observed is ``(round, ...)``."""
        parts = [
            loss(images, labels, {name: value[i] for name, value in observed.items()})
            for i, loss in enumerate(self.losses)
        ]
        return torch.stack(parts).mean()

    def evidence(self, images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
        """The mean loss, and the sum of the surprises."""
        losses, surprises = [], []
        for i, loss in enumerate(self.losses):
            of_round = {name: value[i] for name, value in observed.items()}
            distance, surprise = loss.evidence(images, labels, of_round)
            losses.append(distance)
            surprises.append(surprise)
        return torch.stack(losses).mean(), torch.stack(surprises).sum()


Evidence: TypeAlias = Callable[[Tensor, Tensor, Tensors], tuple[Tensor, Tensor]]
"""(images, labels, observed) -> (matching loss, -log p(observed | images))."""
MatchingLoss: TypeAlias = ImageLoss | RoundsLoss


@dataclass(frozen=True)
class VictimGroup:
    """Observations of one shape.

    Attributes:
        labels: int64 ``(victim, example)``.
        observed: gradients ``(victim, ...)`` in float32.
        prior: what the attacker knows of images beforehand.
    """

    loss: MatchingLoss
    labels: Tensor
    observed: Tensors
    prior: PixelPrior
    rngs: Sequence[torch.Generator]
    job: Job

    def lanes(self, victims: Sequence[int]) -> tuple[Tensor, Tensors]:
        """Labels and gradients of these victims, one lane each."""
        index = torch.tensor(list(victims), device=self.labels.device)
        return self.labels[index], {name: value[index] for name, value in self.observed.items()}
