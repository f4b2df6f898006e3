"""A network that turns the features of an update into the examples behind it."""

from __future__ import annotations

from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attacks.learned.inverter_outputs import Pixels, TokenOutput

Output: TypeAlias = Pixels | TokenOutput
ENUMERATED = 4
"""Largest batch whose orders are all tried, on the device."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which a feature is cut off."""


class Inverter(nn.Module):
    """``Linear-ReLU-Linear-ReLU-Linear`` on standardised features (Wu et al. 2022).

    They do not standardise.

    Attributes:
        size: examples of an update.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, width: int, size: int, output: Output) -> None:
        super().__init__()
        self.size, self.output = size, output
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))
        self.first = nn.Linear(features, width)
        self.rest = output.layers(width, size)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``."""
        mean, deviation = standard(features)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, example, ...)``."""
        hidden = self.first(scaled(features, self.mean, self.deviation)).relu()
        guesses: Tensor = self.rest(hidden)
        return guesses


def standard(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of ``features (update, feature)``; 1 for one that hardly varies."""
    deviation = features.std(0)
    return features.mean(0), torch.where(deviation > 1e-6 * deviation.max(), deviation, 1)


def scaled(features: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Deviations from the mean, cut off where they are far."""
    return ((features - mean) / deviation).clamp(-_FARTHEST, _FARTHEST)


def assigned(costs: Tensor) -> Tensor:
    """The cost of the best one-to-one assignment of each update, as a mean over its examples."""
    size = costs.shape[1]
    guess = torch.arange(size, device=costs.device)
    if size <= ENUMERATED:
        orders = torch.tensor(list(permutations(range(size))), device=costs.device)
        return costs[:, guess, orders].mean(-1).amin(1)
    from scipy.optimize import linear_sum_assignment

    columns = [linear_sum_assignment(matrix)[1] for matrix in costs.detach().cpu().numpy()]
    order = torch.stack([torch.from_numpy(column) for column in columns]).to(costs.device)
    return costs.gather(2, order[:, :, None])[:, :, 0].mean(1)
