"""A network that turns the features of an update into the examples behind it."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attacks.learned.inverter_outputs import Pixels, TokenOutput

Output: TypeAlias = Pixels | TokenOutput
ENUMERATED = 4
"""Largest batch whose orders are all tried, on the device."""
_FEW = 8
"""Updates of a class below which it is standardised with all others."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which a feature is cut off."""
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Penalties of the linear regression, by the variance of a feature; noise takes the large ones."""


class Inverter(nn.Module):
    """``Linear-ReLU-Linear-ReLU-Linear`` on standardised features (Wu et al. 2022).

    They do not standardise. Where the last features tell the ``classes``, each class has its own
    mean and deviation, and the network's guess is added to that of a linear regression.

    Attributes:
        size: examples of an update.
        linear: the regression, or None.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, features: int, width: int, size: int, output: Output, classes: int = 0
    ) -> None:
        super().__init__()
        self.size, self.output, self.classes = size, output, classes
        kinds, measured = max(1, classes), features - classes
        self.register_buffer("mean", torch.zeros(kinds, measured))
        self.register_buffer("deviation", torch.ones(kinds, measured))
        self.first = nn.Linear(features, width)
        self.rest = output.layers(width, size)
        self.linear: nn.Linear | None = None
        if classes and isinstance(output, Pixels):
            self.linear = nn.Linear(features, math.prod(output.shape)).requires_grad_(False)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``.

        A class of few updates gets those of all.
        """
        values, kinds = self._split(features)
        for kind in range(len(self.mean)):
            own = values[kinds == kind]
            own = own if len(own) >= _FEW else values
            deviation = own.std(0)
            self.mean[kind] = own.mean(0)
            self.deviation[kind] = torch.where(deviation > 1e-6 * deviation.max(), deviation, 1)

    def regress(self, training: tuple[Tensor, Tensor], heldout: tuple[Tensor, Tensor]) -> None:
        """Set the linear regression to least squares, its ridge chosen on held-out updates.

        Args:
            training: features ``(update, feature)`` and examples ``(update, value)``.
            heldout: the same.
        """
        assert self.linear is not None
        features, truths = self._scaled(training[0]), training[1]
        others = self._scaled(heldout[0])
        mean = truths.mean(0)
        wide = features.shape[1] > len(features)  # the smaller of the two systems is solved
        gram = (features @ features.T if wide else features.T @ features).double()
        right = (truths - mean if wide else features.T @ (truths - mean)).double()
        lowest = math.inf
        for ridge in _RIDGES:
            penalty = ridge * len(features) * torch.eye(len(gram), device=gram.device)
            factor, failed = torch.linalg.cholesky_ex(gram + penalty)
            if failed:
                continue
            solved = torch.cholesky_solve(right, factor).float()
            weight = features.T @ solved if wide else solved
            error = float((others @ weight + mean - heldout[1]).square().mean())
            if error < lowest:
                lowest = error
                self.linear.weight.copy_(weight.T)
                self.linear.bias.copy_(mean)

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, example, ...)``."""
        scaled = self._scaled(features)
        guesses: Tensor = self.rest(self.first(scaled).relu())
        if self.linear is not None:
            guesses = guesses + self.linear(scaled).view_as(guesses)
        return guesses

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The features that are measured, and the class of each update."""
        values = features[:, : self.mean.shape[1]]
        if not self.classes:
            return values, torch.zeros(len(values), dtype=torch.int64, device=values.device)
        return values, features[:, self.mean.shape[1] :].argmax(1)

    def _scaled(self, features: Tensor) -> Tensor:
        values, kinds = self._split(features)
        scaled = (values - self.mean[kinds]) / self.deviation[kinds]
        rest = features[:, self.mean.shape[1] :]
        return torch.cat([scaled.clamp(-_FARTHEST, _FARTHEST), rest], 1)


def assigned(costs: Tensor) -> Tensor:
    """The cost of the best one-to-one assignment of each update, as a mean over its examples."""
    size = costs.shape[1]
    guess = torch.arange(size, device=costs.device)
    if size <= ENUMERATED:
        orders = torch.tensor(list(permutations(range(size))), device=costs.device)
        return costs[:, guess, orders].mean(-1).amin(1)
    from scipy.optimize import linear_sum_assignment

    found = [linear_sum_assignment(own)[1] for own in costs.detach().cpu().numpy()]
    order = torch.stack([torch.from_numpy(own) for own in found]).to(costs.device)
    return costs.gather(2, order[:, :, None])[:, :, 0].mean(1)
