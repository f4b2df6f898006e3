"""The sentences of a batch exchanged one by one, and their ends in pairs, for better ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.cuts import CUTS
from attacks.spans.explained import Explained


def improved(
    found: Explained,
    again: Callable[[int], Sequence[Tensor]],
    along: Callable[[Tensor], Tensor],
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
        along: log-likelihood of each next token at each place of a line but the first.
        rounds: most rounds.
        done: whether the sentences explain the whole update.
        job: ends the rounds when its time is up.
    """
    tried: dict[int, set[Tensor]] = {}
    for _ in range(rounds):
        cross(found, along, job)
        if done():
            return
        before = list(found.lines)
        for index in _weakest(found):
            others = {line for i, line in enumerate(found.lines) if i != index}
            if tried.get(index) == others:
                continue
            if job.expired:
                return
            tried[index] = others
            lines = [found.lines[index], *again(index)]
            own = found.match.against(found.left(index))
            best = lines[int(own.similarities(lines).argmax())]
            if not torch.equal(best, found.lines[index]):
                found.exchange({index: best})
                if done():
                    return
        if all(a is b for a, b in zip(before, found.lines, strict=True)):
            return


def cross(found: Explained, along: Callable[[Tensor], Tensor], job: Job) -> None:
    """Let pairs of sentences swap a word, or all that follows, where that explains more.

    Args:
        found: the sentences, which are changed.
        along: log-likelihood of each next token at each place of a line but the first.
        job: ends the swaps when its time is up.
    """
    for one, other in combinations(range(len(found.lines)), 2):
        a, b = found.lines[one], found.lines[other]
        if job.expired:
            return
        pairs = [(a, b), *_swapped(a, b, along(a), along(b))]
        scores = found.match.against(found.left(one, other)).pairs(pairs)
        best = int(scores.argmax())
        if best:
            found.exchange({one: pairs[best][0], other: pairs[best][1]})


def _swapped(a: Tensor, b: Tensor, tells_a: Tensor, tells_b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The two lines after the likeliest swaps, of a word each or of all that follows a place."""
    mine, theirs = tells_a.gather(1, a[1:, None]), tells_b.gather(1, b[1:, None])
    gain = tells_a[:, b[1:]] + tells_b[:, a[1:]].T - mine - theirs.T
    gain = gain.masked_fill(a[1:, None] == b[None, 1:], -torch.inf)
    pairs = []
    for i, j in _best(gain[:-1, :-1]):
        one, other = a.clone(), b.clone()
        one[i], other[j] = b[j], a[i]
        pairs.append((one, other))
    ends = gain.diag()
    for i, _ in _best(ends[:, None]):
        pairs.append((torch.cat([a[:i], b[i:]]), torch.cat([b[:i], a[i:]])))
    return pairs


def _best(gain: Tensor) -> list[tuple[int, int]]:
    """Places of the largest finite entries, counted from 1."""
    values, index = gain.flatten().topk(min(CUTS.swaps, gain.numel()))
    flat = index[values.isfinite()].tolist()
    return [(i // gain.shape[1] + 1, i % gain.shape[1] + 1) for i in flat]


def _weakest(found: Explained) -> list[int]:
    """Numbers of the sentences, those first that explain least for their length."""
    scores = [
        float(found.match.against(found.left(i)).similarities([line])[0]) / len(line) ** 0.5
        for i, line in enumerate(found.lines)
    ]
    return sorted(range(len(scores)), key=scores.__getitem__)
