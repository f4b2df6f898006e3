"""Agreement between the silent units of a ReLU layer and the signs of their inputs."""

import torch
from torch import Tensor, nn

from attacks.solved.sparse_columns import Factors, Pool

_TRIED = 16  # spare directions of the pool tried as replacements
_EXCHANGES = 4  # most replacements in one call, each the best of all
_ROUNDS = 8  # most alternations between silent units and images
_SILENT_SLACK = 30.0
"""Factor on that threshold for a unit whose input is negative."""


class Signs:
    """SPEAR's score lambda: the share of units that are silent where their inputs are negative.

    For columns ``Q`` the images are ``X = Q^-1 S V^T`` up to scale, so that the inputs of the units
    are ``X W^T``, the bias being the last column of both. ReLU blocks the gradient of a negative
    input: entry ``(i, j)`` agrees if ``(X W^T)_ij > 0`` and unit ``j`` of ``D_i`` is active, or
    if neither holds (Dimitrov et al. 2024).
    """

    def __init__(self, factors: Factors, layer: nn.Linear) -> None:
        self._factors = factors
        weight = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()[factors.live]
        self._inputs = factors.values[:, None] * (factors.right @ weight.T)

    def quiet(self) -> Tensor:
        """The units sorted by their inputs at a mean of the images, lowest first."""
        return (self._inputs[0] / self._factors.right[0, -1]).argsort()

    def agreement(self, directions: Tensor) -> Tensor:
        """Share of agreeing units of each image, ``(..., rank)``.

        ``directions (..., rank, rank)`` holds one column of ``Q`` in each row.
        """
        active = self.active(directions)
        silent = self._factors.silence(directions)
        # Cancelling terms leave more rounding than the size of their sum suggests.
        agreed = torch.where(active, ~silent, self._factors.silence(directions, _SILENT_SLACK))
        return agreed.double().mean(-1)

    def active(self, directions: Tensor) -> Tensor:
        """The units with a positive input at each image, bool ``(..., rank, unit)``."""
        inverse, _ = torch.linalg.inv_ex(directions.mT)
        scale = inverse @ (self._factors.values * self._factors.right[:, -1])
        active: Tensor = (inverse @ self._inputs) / scale[..., None] > 0
        return active

    def best(self, pool: Pool) -> tuple[Tensor, float]:
        """The sparsest directions, with replacements from the pool as long as lambda rises.

        Missing directions are filled with an orthogonal complement of those present.
        """
        count, rank = pool.independent, self._factors.rank
        columns, others = pool.directions[:count], pool.directions[count : count + _TRIED]
        if count < rank:
            _, _, basis = torch.linalg.svd(columns, full_matrices=True)
            columns = torch.cat([columns, basis[count:]])
        highest = float(self.agreement(columns).mean())
        for _ in range(_EXCHANGES if len(others) else 0):
            swapped = columns.expand(len(others), rank, rank, rank).clone()
            places = torch.arange(rank)
            swapped[:, places, places] = others[:, None]
            scores = self.agreement(swapped).mean(-1).flatten()
            if not float(scores.max()) > highest:
                break
            highest = float(scores.max())
            columns = swapped.flatten(0, 1)[int(scores.argmax())]
        return columns, highest

    def settle(self, pool: Pool, silent: Tensor) -> tuple[Tensor, float]:
        """The best columns on the way from silent units to images and back to silent units.

        Args:
            pool: whose factors the columns are fitted to.
            silent: of all images, bool ``(rank, unit)``.
        """
        best, highest = pool.refine(silent)[0], 0.0
        for _ in range(_ROUNDS):
            columns, _ = pool.refine(silent)
            agreement = float(self.agreement(columns).mean())
            before, silent = silent, ~self.active(columns)
            if agreement > highest and int(torch.linalg.matrix_rank(columns)) == len(columns):
                best, highest = columns, agreement
            if torch.equal(before, silent) or not bool(silent.any(dim=1).all()):
                break
        return best, highest
