"""Orders of a sentence's words to try, as in LAMP (Balunovic et al. 2022, section 4.3)."""

from __future__ import annotations

import torch
from torch import Tensor


def transforms(first: int, last: int, total: int, count: int, rng: torch.Generator) -> Tensor:
    """Orders int64 ``(order, total)`` of which no two are alike; the first changes nothing.

    In turn a swap of two words, a word moved, a span moved, and a prefix put at the end, each drawn
    uniformly. LAMP's code draws some that change nothing, and its prefixes may carry the end token
    and padding along.

    Args:
        first: place of the first word; what stands before it stays.
        last: place of the last word; what stands after it stays.
        total: tokens of the padded sentence.
        count: orders drawn; fewer are returned where some are drawn twice.
        rng: where they are drawn from.
    """
    words = list(range(first, last + 1))
    orders: dict[tuple[int, ...], None] = {tuple(words): None}
    if len(words) > 1:
        draws = torch.rand(count - 1, 3, generator=rng).tolist()
        for number, draw in enumerate(draws):
            orders[tuple(_KINDS[number % len(_KINDS)](words, *draw))] = None
    rest = torch.arange(total).repeat(len(orders), 1)
    rest[:, first : last + 1] = torch.tensor(list(orders))
    return rest


def reordered(words: list[int], kind: float, *draws: float) -> list[int]:
    """The words after one of the four moves; ``kind`` and three draws are uniform in [0, 1)."""
    return _KINDS[int(kind * len(_KINDS))](words, *draws)


def _swap(words: list[int], first: float, second: float, _: float) -> list[int]:
    i, j = int(first * len(words)), int(second * len(words))
    swapped = words.copy()
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return swapped


def _move(words: list[int], start: float, goal: float, _: float) -> list[int]:
    i, j = int(start * len(words)), int(goal * len(words))
    rest = words[:i] + words[i + 1 :]
    return [*rest[:j], words[i], *rest[j:]]


def _move_span(words: list[int], first: float, second: float, goal: float) -> list[int]:
    i, j = sorted(int(cut * (len(words) + 1)) for cut in (first, second))
    rest = words[:i] + words[j:]
    k = int(goal * (len(rest) + 1))
    return [*rest[:k], *words[i:j], *rest[k:]]


def _turn(words: list[int], cut: float, *_: float) -> list[int]:
    i = int(cut * len(words))
    return words[i:] + words[:i]


_KINDS = (_swap, _move, _move_span, _turn)
