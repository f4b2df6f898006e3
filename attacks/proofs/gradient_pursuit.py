"""A batch of sentences chosen one after another, each for what it explains of the update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.proofs.gradient_match import GradientMatcher
from fedsim.types import Tensors


def choose(
    match: GradientMatcher,
    lines: Sequence[Tensor],
    count: int,
    pursuit: GradientPursuit | None = None,
) -> GradientPursuit:
    """At most ``count`` lines of a language model that explain the update.

    Orthogonal matching pursuit: take the line whose gradient explains most of what is left, fit the
    weights of all lines taken, and subtract (Pati et al. 1993; for federated text, SOMP, 2026).

    Args:
        match: compares with the whole update.
        lines: candidates, each with its end token if it has one.
        count: sentences of the batch.
        pursuit: lines that are taken already.
    """
    if pursuit is None or not pursuit.lines:
        pursuit = GradientPursuit.of(match, [lines[int(match.similarities(lines).argmax())]])
    while len(pursuit.lines) < count:
        scores = match.against(pursuit.residual()).similarities(lines)
        known = {tuple(line.tolist()) for line in pursuit.lines}
        for index, line in enumerate(lines):
            if tuple(line.tolist()) in known:
                scores[index] = -torch.inf
        if float(scores.max()) <= 0:
            break
        pursuit.add(lines[int(scores.argmax())])
    return pursuit


class GradientPursuit:
    """Lines of a language model whose gradients, at fitted weights, explain the update.

    Attributes:
        match: compares with the update.
        whole: the update, each tensor of it in the size of a gradient.
        lines: the sentences.
    """

    def __init__(self, match: GradientMatcher, whole: Tensors) -> None:
        self.match, self.whole = match, whole
        self.lines: list[Tensor] = []
        self._gradients: list[Tensors] = []
        self._weights = torch.zeros(0)

    @classmethod
    def of(cls, match: GradientMatcher, lines: Sequence[Tensor]) -> GradientPursuit:
        """Of these lines; signs get, in each tensor, the size of the first line's gradient."""
        whole = match.update
        if match.measure == "each" and lines:
            size = match.gradient(lines[0])
            whole = {n: v * (size[n].norm() / v.norm().clamp(min=1e-30)) for n, v in whole.items()}
        pursuit = cls(match, whole)
        for line in lines:
            pursuit.add(line)
        return pursuit

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """The tokens of each line."""
        return [tuple(line.tolist()) for line in self.lines]

    def add(self, line: Tensor) -> None:
        """Take one more line."""
        self.lines.append(line)
        self._gradients.append(self.match.gradient(line))
        self._fit()

    def exchange(self, index: int, line: Tensor) -> None:
        """Take another line in place of one."""
        self.lines[index], self._gradients[index] = line, self.match.gradient(line)
        self._fit()

    def residual(self, *but: int) -> Tensors:
        """The update less what the lines but some explain."""
        return less(self.whole, self._shown, self._but(but))

    def part(self, *but: int) -> Tensors:
        """What the lines but some explain, whether or not it was sent."""
        nothing = {name: torch.zeros_like(value) for name, value in self.whole.items()}
        return less(nothing, self._gradients, -self._but(but))

    @property
    def _shown(self) -> list[Tensors]:
        return [self.match.shown(gradient) for gradient in self._gradients]

    def _but(self, rows: Sequence[int]) -> Tensor:
        weights = self._weights.clone()
        weights[list(rows)] = 0
        return weights

    def _fit(self) -> None:
        self._weights = fitted(self.whole, self._shown)


def fitted(whole: Tensors, parts: Sequence[Tensors]) -> Tensor:
    """Weights of the parts that explain the whole best, ``(part,)``, at least 0."""
    names = [name for name in whole if name in parts[0]]
    table = torch.tensor(
        [[sum(float((a[n] * b[n]).sum()) for n in names) for b in parts] for a in parts]
    )
    goal = torch.tensor([sum(float((a[n] * whole[n]).sum()) for n in names) for a in parts])
    solution: Tensor = torch.linalg.lstsq(table.double(), goal.double()[:, None]).solution
    return solution[:, 0].clamp(min=0)


def less(whole: Tensors, parts: Sequence[Tensors], weights: Tensor) -> Tensors:
    """The whole less the weighted parts."""
    residual = {name: value.clone() for name, value in whole.items()}
    for part, weight in zip(parts, weights.tolist(), strict=True):
        for name in residual:
            if name in part and weight:
                residual[name].sub_(part[name], alpha=weight)
    return residual
