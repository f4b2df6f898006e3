"""Pairs of sentences that have taken each other's ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.next_token_shift import DirectionalShift

_JUNCTIONS = 24  # places tried where two sentences may have taken each other's ends
_LEAST_GAIN = 0.5  # nats by which an exchange of ends has to be likelier


def swap_suffixes(
    lines: Sequence[Tensor], shift: DirectionalShift, longest: int, job: Job
) -> list[Tensor]:
    """The lines after exchanging the ends of two as long as that makes both likelier together.

    A search that is led by how much of an update a line explains may leave one sentence for the end
    of another. Both together then still hold the right words, and only what the model and the
    update say of the next word tells.

    Args:
        lines: token ids ``(token,)`` of each sentence.
        shift: the attacked model and what the update makes of it.
        longest: most tokens of a sentence.
        job: ends it when its time is up.
    """
    lines = [*lines]
    logs = [shift.along(line).log_softmax(-1) for line in lines]
    pairs = [*combinations(range(len(lines)), 2)]
    while pairs and not job.expired:
        first, second = pairs.pop()
        line_a, line_b = lines[first], lines[second]
        before = _total(logs[first], line_a) + _total(logs[second], line_b)
        best, swapped = before + _LEAST_GAIN, None
        for begin, start in _junctions(line_a, line_b, logs[first], logs[second]):
            a = torch.cat([line_a[:begin], line_b[start:]])
            b = torch.cat([line_b[:start], line_a[begin:]])
            if max(len(a), len(b)) > longest:
                continue
            new = [shift.along(line).log_softmax(-1) for line in (a, b)]
            if (total := _total(new[0], a) + _total(new[1], b)) > best:
                best, swapped = total, (a, b, *new)
        if swapped is not None:
            lines[first], lines[second], logs[first], logs[second] = swapped
            pairs = [*combinations(range(len(lines)), 2)]
    return lines


def _junctions(line: Tensor, other: Tensor, logs: Tensor, theirs: Tensor) -> list[tuple[int, int]]:
    """Places ``(in one, in other)`` where the ends fit better by their first words, best first."""
    mine = logs.gather(1, line[1:, None]).squeeze(1)
    their = theirs.gather(1, other[1:, None]).squeeze(1)
    gain = logs[:, other[1:]] + theirs[:, line[1:]].T - mine[:, None] - their
    best = gain.flatten().topk(min(_JUNCTIONS, int((gain > 0).sum()))).indices
    return [(int(i) // gain.shape[1] + 1, int(i) % gain.shape[1] + 1) for i in best]


def _total(logs: Tensor, line: Tensor) -> float:
    return float(logs.gather(1, line[1:, None]).sum())
