"""The victims that share a pass of a text search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

PADDED = 16
"""Most places of padding in a pass on the CPU: beyond that one more pass costs less."""


def passes(longest: Sequence[int], lines: int, size: int, *, on_cpu: bool) -> list[slice]:
    """Slices of victims in the order of their lengths, of at most ``size`` each.

    A pass is as wide as its longest. On a CPU padding costs as much as words, and a victim of much
    other length starts the next pass.

    Args:
        longest: tokens of the longest sentence of each victim.
        lines: sentences of a victim, in all its lanes.
        size: most victims in a pass.
        on_cpu: whether padding costs time.
    """
    starts = [0]
    for victim in range(len(longest)):
        own = longest[starts[-1] : victim + 1]
        padding = (max(own) * len(own) - sum(own)) * lines
        if len(own) > size or (on_cpu and padding > PADDED):
            starts.append(victim)
    return [slice(*ends) for ends in pairwise([*starts, len(longest)])]
