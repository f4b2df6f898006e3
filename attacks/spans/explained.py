"""A batch of sentences chosen one after another, each for what it explains of the update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.spans.rematch import Rematch
from fedsim.types import Tensors


def choose(
    match: Rematch, lines: Sequence[Tensor], count: int
) -> tuple[list[Tensor], list[Tensors]]:
    """At most ``count`` lines of a language model, and the update without all but each.

    Orthogonal matching pursuit: take the line whose gradient explains most of what is left, fit the
    weights of all lines taken, and subtract (Pati et al. 1993; for federated text, SOMP, 2026).

    Args:
        match: compares with the whole update.
        lines: candidates, each with its end token if it has one.
        count: sentences of the batch.

    Returns:
        The lines, and for each of them the update less what the others explain.
    """
    whole = match.update
    if match.measure == "each":
        # Give each tensor the size that it has in the gradient of the nearest line.
        size = match.gradient(lines[int(match.similarities(lines).argmax())])
        whole = {n: v * (size[n].norm() / v.norm().clamp(min=1e-30)) for n, v in whole.items()}
    taken: list[Tensor] = []
    made: list[Tensors] = []
    weights = torch.zeros(0)
    left = whole
    while len(taken) < count:
        scores = match.against(left).similarities(lines)
        if not taken:
            best = scores.topk(min(len(lines), 16 * count)).indices.tolist()
            lines, scores = [lines[i] for i in best], scores[best]
        known = {tuple(line.tolist()) for line in taken}
        for index, line in enumerate(lines):
            if tuple(line.tolist()) in known:
                scores[index] = -torch.inf
        if float(scores.max()) <= 0:
            break
        taken.append(lines[int(scores.argmax())])
        made.append(match.gradient(taken[-1]))
        weights = fitted(whole, made)
        left = less(whole, made, weights)
    alone = []
    for index in range(len(taken)):
        others = weights.clone()
        others[index] = 0
        alone.append(less(whole, made, others))
    return taken, alone


def fitted(whole: Tensors, parts: Sequence[Tensors]) -> Tensor:
    """Weights of the parts that explain the whole best, ``(part,)``, at least 0."""
    names = [name for name in whole if name in parts[0]]
    table = torch.tensor(
        [[sum(float((a[n] * b[n]).sum()) for n in names) for b in parts] for a in parts]
    )
    goal = torch.tensor([sum(float((a[n] * whole[n]).sum()) for n in names) for a in parts])
    found: Tensor = torch.linalg.lstsq(table.double(), goal.double()[:, None]).solution
    return found[:, 0].clamp(min=0)


def less(whole: Tensors, parts: Sequence[Tensors], weights: Tensor) -> Tensors:
    """The whole less the weighted parts."""
    left = {name: value.clone() for name, value in whole.items()}
    for part, weight in zip(parts, weights.tolist(), strict=True):
        for name in left:
            if name in part and weight:
                left[name].sub_(part[name], alpha=weight)
    return left
