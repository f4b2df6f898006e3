"""Assignment of tokens to positions from the gradient rows of both embedding tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import one_hot


def sentence(words: Tensor, positions: Tensor) -> tuple[list[int], float]:
    """The row number in ``words`` at each position of a single example, and the miss.

    Solves ``words = X^T positions`` for one-hot ``X`` by least squares. The miss is the largest
    residual norm of a word row, divided by the smallest singular value of ``positions``; infinite
    if that is 0, as where two positions have the same signs or there are more positions than
    dimensions: then several sentences fit alike. A row whose position noise or pruning has hidden
    comes last.

    Args:
        words: rows of the tokens found, float64 ``(token, width)``.
        positions: rows of the positions in use, in order, float64 ``(position, width)``.
    """
    scores = (words @ torch.linalg.pinv(positions)).cpu()
    best, choice = scores.max(0)
    # Each token found takes one position; the remaining positions repeat their best token.
    rows, places = map(torch.from_numpy, linear_sum_assignment(scores.cpu().numpy(), maximize=True))
    fits = scores[rows, places] > best[places] / 2
    choice[places[fits]] = rows[fits]
    order: list[int] = choice.tolist()
    order += sorted(set(range(len(words))) - set(order))
    if not 0 < len(positions) <= positions.shape[1]:
        return order, float("inf")
    residual = words - one_hot(choice, len(words)).T.to(words) @ positions
    values = torch.linalg.svdvals(positions)
    rounding = torch.finfo(positions.dtype).eps * max(positions.shape) * float(values[0])
    if (smallest := float(values[-1])) <= rounding:
        return order, float("inf")
    return order, float(residual.norm(dim=1).max()) / smallest


def arrangement(
    words: Tensor, positions: Tensor, count: int | None, lengths: Sequence[int] | None
) -> list[list[int]]:
    """The row numbers in ``words`` of each sentence, by position.

    For tokens that occur once in the batch, ``positions pinv(words)`` is 1 at their positions.

    Args:
        words: rows of the tokens found, float64 ``(token, width)``.
        positions: rows of the positions in use, in order; may be empty.
        count: number of sentences, if known.
        lengths: number of tokens of each sentence, if known.
    """
    scores = (positions @ torch.linalg.pinv(words)).cpu()
    depth = depths(scores, count, lengths)
    most = count or max([1, *depth.tolist()])
    while len(depth) and int(depth.sum()) < len(words) and int(depth.min()) < most:
        depth = (depth + 1).clamp(max=most)
    slots = scores[torch.repeat_interleave(torch.arange(len(depth)), depth)]
    choice = slots.argmax(1)
    taken, rows = map(torch.from_numpy, linear_sum_assignment(slots.numpy(), maximize=True))
    choice[taken] = rows
    lines: list[list[int]] = [[] for _ in range(most)]
    owners = [line for deep in depth.tolist() for line in range(deep)]
    for line, row in zip(owners, choice.tolist(), strict=True):
        lines[line].append(row)
    for index, row in enumerate(sorted(set(range(len(words))) - set(choice.tolist()))):
        lines[index % most].append(row)
    return [line or list(range(len(words))) for line in lines]


def depths(scores: Tensor, count: int | None, lengths: Sequence[int] | None) -> Tensor:
    """Number of sentences that reach each position, int64 ``(position,)``, never increasing.

    If the lengths are unknown, it is the number of tokens with more than half the largest weight at
    the first position. Sentences often share their first token, whose two rows are then equal.
    """
    if lengths is not None:
        return (torch.tensor(lengths) > torch.arange(len(scores))[:, None]).sum(1)
    if not len(scores):
        return torch.zeros(0, dtype=torch.int64)
    counts = (scores > scores[0].max() / 2).sum(1).clamp(min=1, max=count)
    counts[0] = count or int(counts.max())
    return counts.flip(0).cummax(0).values.flip(0)
