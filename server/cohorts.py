"""Replies that several nodes seem to send alike: the sum of a cohort under secure aggregation."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from fedsim.reply_kind import matched
from server.replies import Arrays, Reply

_SAMPLE = 16


def pooled_equal(replies: Sequence[Reply]) -> list[Reply]:
    """Replies with the same arrays as one, whose client is the smallest node of the cohort.

    Flower's SecAgg+ hands the strategy the mean in place of each reply. Clients that did not train
    reply alike, too, and stay apart.
    """
    groups: dict[Hashable, list[Reply]] = defaultdict(list)
    for reply in replies:
        groups[_sample(reply.arrays)].append(reply)
    pooled: list[Reply] = []
    for alike in groups.values():
        first = min(alike, key=lambda reply: reply.client)
        same = [_same(first.arrays, reply.arrays) for reply in alike]
        if sum(same) == 1 or _untrained(first):
            pooled += alike
            continue
        cohort = [reply for reply, equal in zip(alike, same, strict=True) if equal]
        others = [reply for reply, equal in zip(alike, same, strict=True) if not equal]
        pooled += [_mean(first, cohort), *others]
    return pooled


def _mean(first: Reply, replies: Sequence[Reply]) -> Reply:
    claims = [reply.claimed_examples for reply in replies]
    nodes = tuple(sorted(reply.client for reply in replies))
    return replace(
        first,
        knowledge=first.knowledge.model_copy(update={"cohort": len(nodes), "members": nodes}),
        claimed_examples=None if None in claims else sum(claim or 0 for claim in claims),
        nodes=nodes,
    )


def _sample(arrays: Arrays) -> Hashable:
    """Some entries of each array, by which replies that differ are known without reading all."""
    return tuple(
        (name, array.shape, array.dtype.str, array.ravel()[:_SAMPLE].tobytes())
        for name, array in arrays.items()
    )


def _same(ours: Arrays, theirs: Arrays) -> bool:
    return all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in ours)


def _untrained(reply: Reply) -> bool:
    pairs = matched(reply.sent.arrays, reply.arrays)
    unchanged = all(np.array_equal(a, b) for a, b in pairs)
    return bool(pairs) and (unchanged or not any(b.any() for _, b in pairs))
