"""How the gradients of texts vary: the noise that the rest of a sentence makes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.factors import Products
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.causal.head_gradient import HeadGradient, Roots
from fedsim.types import Tensors

_WIDEST = 4096  # side of a matrix whose moments are taken; a head's are not
_LINES = 8  # whose gradients are formed at a time
_SCALE_STEPS = 30  # of Fisher scoring
_SCALE_ENTRIES = 200_000  # those that vary most, which the scale is fitted to
_NORMAL_MEDIAN = 0.6745  # median of the absolute value of a standard normal number


@dataclass(frozen=True)
class TextCovariance:
    """Second moments of the rows and the columns of each matrix, over texts drawn from the model.

    The gradient of the log-likelihood has a mean of zero over a model's own texts, and the moments
    of both sides give a matrix normal distribution ``L (x) R / tr L`` of it (the form that K-FAC
    takes for a Fisher matrix, Martens and Grosse 2015).

    Attributes:
        left: of the rows of each matrix; none for the table of words.
        right: of the columns; for the table those of the states below the head, a token.
    """

    left: Tensors
    right: Tensors

    @classmethod
    def of(cls, match: GradientMatcher, head: HeadGradient, lines: Tensor) -> TextCovariance:
        """Of the gradients of lines ``(line, token)``, each a mean over its tokens."""
        left: Tensors = {}
        right: Tensors = {}
        states = []
        for part in lines.split(_LINES):
            for name, gradient in _matrices(match, head, part):
                rows, columns = (gradient @ gradient.mT).sum(0), (gradient.mT @ gradient).sum(0)
                left[name] = left.get(name, 0) + rows / len(lines)
                right[name] = right.get(name, 0) + columns / len(lines)
            states.append(head.states[:, :-1].flatten(0, 1))
        if head.tied:
            inputs = torch.cat(states)
            right[head.name] = inputs.T @ inputs / len(inputs)
        return cls(left, right)

    def scale(self, update: Tensors, noise: float) -> float:
        """The likeliest multiple of such gradients in an update of white noise."""
        energies, variances = [], []
        for name in self.left:
            (rows, left), (columns, right) = (
                torch.linalg.eigh(side[name]) for side in (self.left, self.right)
            )
            energies.append((left.T @ update[name] @ right).square().flatten())
            variances.append((rows[:, None] * columns / rows.sum()).clamp(min=0).flatten())
        variance, most = torch.cat(variances).sort(descending=True)
        variance = variance[:_SCALE_ENTRIES].double()
        energy = torch.cat(energies)[most[:_SCALE_ENTRIES]].double()
        square = 0.0
        for _ in range(_SCALE_STEPS):
            weight = variance / (noise**2 + square * variance).square()
            square = float((weight * (energy - noise**2)).sum() / (weight * variance).sum())
            square = max(square, 0.0)
        return math.sqrt(square)

    def roots(self, noise: float, rest: float, repeats: float) -> Roots:
        """Inverse roots of both sides' covariance with white noise added.

        The noise is split between the sides by their mean moments, as K-FAC is damped.

        Args:
            noise: standard deviation of an entry.
            rest: variance of the texts' gradients in the update, as a multiple of these moments.
            repeats: the same of the states below the head, in each row of the table.
        """
        left: Tensors = {}
        right: Tensors = {}
        for name, rows in self.left.items():
            columns, total = self.right[name], rows.trace()
            balance = (len(columns) / len(rows)) ** 0.5
            spread = (rest / total.clamp(min=1e-30)) ** 0.5
            left[name] = _inverse_root(spread * rows, noise * balance)
            right[name] = _inverse_root(spread * columns, noise / balance)
        for name in self.right.keys() - self.left.keys():
            right[name] = _inverse_root(repeats * self.right[name], noise**2)
        return Roots(left, right, noise)


def white_noise(update: Tensors) -> float:
    """Standard deviation of noise that most entries of an update consist of."""
    values = torch.cat([value.flatten() for value in update.values()])
    return float(values.abs().median()) / _NORMAL_MEDIAN


def _matrices(
    match: GradientMatcher, head: HeadGradient, lines: Tensor
) -> Iterator[tuple[str, Tensor]]:
    for group in head.factors(match, lines):
        if (
            not isinstance(group, Products)
            or max(group.left.shape[-1], group.right.shape[-1]) > _WIDEST
        ):
            continue
        for index, name in enumerate(group.names):
            if name in match.update and name != head.name:
                yield name, group.left[index].mT @ group.right[index]


def _inverse_root(moments: Tensor, ridge: float) -> Tensor:
    values, basis = torch.linalg.eigh(moments)
    root: Tensor = basis * (values.clamp(min=0) + ridge).rsqrt() @ basis.T
    return root
