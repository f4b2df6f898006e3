"""The sentences of a batch exchanged one by one, and their ends in pairs, for better ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.explained import Explained


def improved(
    found: Explained,
    again: Callable[[int], Sequence[Tensor]],
    rounds: int,
    done: Callable[[], bool],
    job: Job,
) -> None:
    """Exchange sentences as long as those explain more of the update.

    A sentence that changes over to another one of the batch explains part of both. Hence any two
    may swap what follows a place, and each sentence is decoded again from what the others leave.

    Args:
        found: the sentences, which are changed.
        again: candidates for the sentence of this number, from what the others leave.
        rounds: most rounds.
        done: whether the sentences explain the whole update.
        job: ends the rounds when its time is up.
    """
    tried: dict[int, set[Tensor]] = {}
    for _ in range(rounds):
        cross(found, job)
        before = list(found.lines)
        for index in _weakest(found):
            others = {line for i, line in enumerate(found.lines) if i != index}
            if tried.get(index) == others:
                continue
            if job.expired or done():
                return
            tried[index] = others
            lines = [found.lines[index], *again(index)]
            own = found.match.against(found.left(index))
            best = lines[int(own.similarities(lines).argmax())]
            if not torch.equal(best, found.lines[index]):
                found.exchange({index: best})
        if all(a is b for a, b in zip(before, found.lines, strict=True)):
            return


def cross(found: Explained, job: Job) -> None:
    """Let pairs of sentences swap what follows a place, where that explains more."""
    for one, other in combinations(range(len(found.lines)), 2):
        a, b = found.lines[one], found.lines[other]
        places = [p for p in range(2, min(len(a), len(b))) if not torch.equal(a[p:], b[p:])]
        places = [p for p in places if not torch.equal(a[:p], b[:p])]
        if not places or job.expired:
            continue
        pairs = [(a, b)]
        pairs += [(torch.cat([a[:p], b[p:]]), torch.cat([b[:p], a[p:]])) for p in places]
        scores = found.match.against(found.left(one, other)).pairs(pairs)
        best = int(scores.argmax())
        if best:
            found.exchange({one: pairs[best][0], other: pairs[best][1]})


def _weakest(found: Explained) -> list[int]:
    """Numbers of the sentences, those first that explain least for their length."""
    scores = [
        float(found.match.against(found.left(i)).similarities([line])[0]) / len(line) ** 0.5
        for i, line in enumerate(found.lines)
    ]
    return sorted(range(len(scores)), key=scores.__getitem__)
