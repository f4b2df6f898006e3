"""The energy of one gradient within the span of the inputs of words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_INDEPENDENT = 1e-3  # least share of an input's square outside the others' span
_RIDGE = 1e-9  # of the inner products of inputs, which may occur twice


@dataclass(frozen=True)
class View:
    """One gradient ``Y = X^T D`` plus noise, and the rows of ``X`` that tokens would make.

    Attributes:
        gram: ``Y Y^T``, ``(width, width)``.
        inputs: rows of ``X`` for each token at each place, ``(place, token, width)``.
    """

    gram: Tensor
    inputs: Tensor

    def __post_init__(self) -> None:
        """Prepare what every sentence needs of each token."""
        images = self.inputs @ self.gram
        object.__setattr__(self, "_images", images)
        object.__setattr__(self, "_energies", (images * self.inputs).sum(2))
        object.__setattr__(self, "_squares", self.inputs.square().sum(2))

    _images: Tensor = None  # type: ignore[assignment]
    _energies: Tensor = None  # type: ignore[assignment]
    _squares: Tensor = None  # type: ignore[assignment]

    def gains(self, places: Tensor, others: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of other pairs of both, ``(token,)``."""
        basis = torch.linalg.qr(self.inputs[places, others].T).Q
        inside = self.inputs[place] @ basis
        seen = inside @ (basis.T @ self.gram @ basis) - 2 * self._images[place] @ basis
        added = self._energies[place] + (inside * seen).sum(1)
        outside = self._squares[place] - inside.square().sum(1)
        clear = outside > _INDEPENDENT * self._squares[place]
        gained: Tensor = added / outside.clamp(min=1e-30)
        return gained.where(clear, 0)

    def energies(self, which: Tensor, lines: Tensor) -> Tensor:
        """Energy within the span of each line's inputs ``(line,)``, float64.

        Args:
            which: numbers of places and tokens, ``place * tokens + token``.
            lines: which of them each line has ``(line, token)``.
        """
        inputs, images = (
            part.flatten(0, 1)[which].double() for part in (self.inputs, self._images)
        )
        return _energies(inputs @ inputs.T, images @ inputs.T, lines)


@dataclass(frozen=True)
class RowView:
    """The same for rows of ``X`` that hold two ones, at the token and at the place.

    Attributes:
        gram: ``Y Y^T``, tokens first, ``(token + place, token + place)``.
        tokens: their number.
    """

    gram: Tensor
    tokens: int

    def gains(self, places: Tensor, others: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of other pairs of both, ``(token,)``."""
        column = self.tokens + place
        used = torch.cat([others, self.tokens + places, places.new_tensor([column])]).unique()
        basis = torch.linalg.qr(self._ones(used, others, places).T).Q
        every = self.gram.new_zeros(self.tokens, basis.shape[1])
        known = used < self.tokens
        every[used[known]] = basis[known]
        inside = every + basis[torch.searchsorted(used, column)]
        images = (self.gram[: self.tokens, used] + self.gram[column, used]) @ basis
        seen = inside @ (basis.T @ self.gram[used][:, used] @ basis) - 2 * images
        diagonal = self.gram.diagonal()
        energy = diagonal[: self.tokens] + 2 * self.gram[column, : self.tokens] + diagonal[column]
        outside = 2 - inside.square().sum(1)
        gained: Tensor = (energy + (inside * seen).sum(1)) / outside.clamp(min=1e-30)
        return gained.where(outside > 2 * _INDEPENDENT, 0)

    def energies(self, which: Tensor, lines: Tensor) -> Tensor:
        """As those of a ``View``."""
        places, tokens = which // self.tokens, which % self.tokens
        used = torch.cat([tokens, self.tokens + places]).unique()
        ones = self._ones(used, tokens, places).double()
        gram = self.gram[used][:, used].double()
        return _energies(ones @ ones.T, ones @ gram @ ones.T, lines)

    def _ones(self, used: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        """Rows of ``X`` for pairs of both, ``(pair, used)``."""
        rows = self.gram.new_zeros(len(tokens), len(used))
        for ids in (tokens, self.tokens + places):
            rows.scatter_(1, torch.searchsorted(used, ids.contiguous())[:, None], 1.0)
        return rows


def _energies(table: Tensor, seen: Tensor, lines: Tensor) -> Tensor:
    """``tr(P Y Y^T)`` of each line ``(line,)``.

    Args:
        table: inner products of inputs ``(input, input)``.
        seen: those of their images.
        lines: numbers of the inputs of each line ``(line, token)``.
    """
    rows, columns = lines[:, :, None], lines[:, None, :]
    table, seen = table[rows, columns], seen[rows, columns]
    table.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE)
    solved: Tensor = torch.linalg.solve(table, seen)
    return solved.diagonal(dim1=1, dim2=2).sum(1)
