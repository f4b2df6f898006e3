"""Pairs of sentences that have taken each other's ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.next_token_shift import DirectionalShift

_JUNCTIONS = 24  # places tried where two sentences may have taken each other's ends
_LEAST_GAIN = 0.5  # nats by which an exchange of ends has to be likelier
_AT_ONCE = 16  # lines scored together, which bounds memory and changes no score


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
    logs = [*_logs(lines, shift)]
    pairs = [*combinations(range(len(lines)), 2)]
    while pairs and not job.expired:
        pair = pairs.pop()
        line, other = (lines[index] for index in pair)
        best, swapped = sum(_total(logs[i], lines[i]) for i in pair) + _LEAST_GAIN, None
        places = _junctions(line, other, *(logs[index] for index in pair))
        swaps = [
            (torch.cat([line[:begin], other[start:]]), torch.cat([other[:start], line[begin:]]))
            for begin, start in places
            if max(begin + len(other) - start, start + len(line) - begin) <= longest
        ]
        scored = _logs([new for swap in swaps for new in swap], shift)
        for swap in swaps:
            new_logs = [next(scored) for _ in swap]
            if (total := sum(map(_total, new_logs, swap))) > best:
                best, swapped = total, (swap, new_logs)
        if swapped is not None:
            for index, new, log in zip(pair, *swapped, strict=True):
                lines[index], logs[index] = new, log
            again = [two for two in combinations(range(len(lines)), 2) if {*two} & {*pair}]
            pairs = [two for two in pairs if two not in again] + again
    return lines


def _logs(lines: Sequence[Tensor], shift: DirectionalShift) -> Iterator[Tensor]:
    """Log-probabilities of the next token at each place of each line."""
    for start in range(0, len(lines), _AT_ONCE):
        yield from (log.log_softmax(-1) for log in shift.along(lines[start : start + _AT_ONCE]))


def _junctions(line: Tensor, other: Tensor, logs: Tensor, theirs: Tensor) -> list[tuple[int, int]]:
    """Places ``(in one, in other)`` where the ends fit better by their first words, best first."""
    mine = logs.gather(1, line[1:, None]).squeeze(1)
    their = theirs.gather(1, other[1:, None]).squeeze(1)
    gain = logs[:, other[1:]] + theirs[:, line[1:]].T - mine[:, None] - their
    best = gain.flatten().topk(min(_JUNCTIONS, int((gain > 0).sum()))).indices
    return [(int(i) // gain.shape[1] + 1, int(i) % gain.shape[1] + 1) for i in best]


def _total(logs: Tensor, line: Tensor) -> float:
    return float(logs.gather(1, line[1:, None]).sum())
