"""Pairs of sentences that have taken each other's ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.cuts import CUTS
from attacks.tokens.next_token_shift import DirectionalShift


def swap_suffixes(
    lines: Sequence[Tensor], told: DirectionalShift, longest: int, job: Job
) -> list[Tensor]:
    """The lines after exchanging the ends of two as long as that makes both likelier together.

    A search that is led by how much of an update a line explains may leave one sentence for the end
    of another. Both together then still hold the right words, and only what the model and the
    update say of the next word tells.

    Args:
        lines: token ids ``(token,)`` of each sentence.
        told: the attacked model and what the update makes of it.
        longest: most tokens of a sentence.
        job: ends it when its time is up.
    """
    lines = [*lines]
    logs = [told.along(line).log_softmax(-1) for line in lines]
    pairs = [*combinations(range(len(lines)), 2)]
    while pairs and not job.expired:
        first, second = pairs.pop()
        one, other = lines[first], lines[second]
        own = _total(logs[first], one) + _total(logs[second], other)
        best, found = own + CUTS.least_gain, None
        for begin, start in _junctions(one, other, logs[first], logs[second]):
            a = torch.cat([one[:begin], other[start:]])
            b = torch.cat([other[:start], one[begin:]])
            if max(len(a), len(b)) > longest:
                continue
            new = [told.along(line).log_softmax(-1) for line in (a, b)]
            if (total := _total(new[0], a) + _total(new[1], b)) > best:
                best, found = total, (a, b, *new)
        if found is not None:
            lines[first], lines[second], logs[first], logs[second] = found
            pairs = [*combinations(range(len(lines)), 2)]
    return lines


def _junctions(one: Tensor, other: Tensor, logs: Tensor, theirs: Tensor) -> list[tuple[int, int]]:
    """Places ``(in one, in other)`` where the ends fit better by their first words, best first."""
    mine = logs.gather(1, one[1:, None]).squeeze(1)
    their = theirs.gather(1, other[1:, None]).squeeze(1)
    gain = logs[:, other[1:]] + theirs[:, one[1:]].T - mine[:, None] - their
    best = gain.flatten().topk(min(CUTS.junctions, int((gain > 0).sum()))).indices
    return [(int(i) // gain.shape[1] + 1, int(i) % gain.shape[1] + 1) for i in best]


def _total(logs: Tensor, line: Tensor) -> float:
    return float(logs.gather(1, line[1:, None]).sum())
