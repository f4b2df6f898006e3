"""Ridge regression of an image's pixels on the features of its update."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attacks.learned.inverter import Pixels, scaled, standard

_FEW = 8
"""Updates of a class below which it is standardised with all others."""
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Penalties, by the variance of a feature; noise takes the large ones."""


class RidgeRegression(nn.Module):
    """A linear map from features, each class with its own mean and deviation, to pixels.

    The last ``classes`` features tell the class, as one-hot vectors.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, classes: int, output: Pixels) -> None:
        super().__init__()
        self.output = output
        self.register_buffer("mean", torch.zeros(classes, features - classes))
        self.register_buffer("deviation", torch.ones(classes, features - classes))
        self.linear = nn.Linear(features, math.prod(output.shape)).requires_grad_(False)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``.

        A class of few updates gets those of all.
        """
        values, kinds, _ = self._split(features)
        for kind in range(len(self.mean)):
            examples = values[kinds == kind]
            examples = examples if len(examples) >= _FEW else values
            self.mean[kind], self.deviation[kind] = standard(examples)

    def fit(self, training: tuple[Tensor, Tensor], heldout: tuple[Tensor, Tensor]) -> Tensor:
        """Set the map to least squares, its ridge chosen on held-out updates.

        Args:
            training: features ``(update, feature)`` and examples ``(update, value)``.
            heldout: the same.

        Returns:
            The mean squared error on the held-out updates.
        """
        features, truths = self._scaled(training[0]), training[1]
        others = self._scaled(heldout[0])
        mean = truths.mean(0)
        wide = features.shape[1] > len(features)  # the smaller of the two systems is solved
        gram = (features @ features.T if wide else features.T @ features).double()
        across = others @ features.T if wide else others
        right = (truths - mean if wide else features.T @ (truths - mean)).double()
        lowest = torch.full((), math.inf, device=features.device)
        best = torch.zeros_like(right, dtype=torch.float32)
        for ridge in _RIDGES:
            penalty = ridge * len(features) * torch.eye(len(gram), device=gram.device)
            factor, failed = torch.linalg.cholesky_ex(gram + penalty)
            if failed:
                continue
            solved = torch.cholesky_solve(right, factor).float()
            error = (across @ solved + mean - heldout[1]).square().mean()
            if error < lowest:
                lowest, best = error, solved
        self.linear.weight.copy_((features.T @ best if wide else best).T)
        self.linear.bias.copy_(mean)
        return lowest

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, 1, pixel)``."""
        guesses: Tensor = self.linear(self._scaled(features))[:, None]
        return guesses

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features that are measured, the class of each update, and its one-hot vector."""
        values, known = features.tensor_split([self.mean.shape[1]], 1)
        return values, known.argmax(1), known

    def _scaled(self, features: Tensor) -> Tensor:
        values, kinds, known = self._split(features)
        return torch.cat([scaled(values, self.mean[kinds], self.deviation[kinds]), known], 1)
