"""The rounds in which a client held the same rows, as far as the server can know."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fedsim.capture import Observation

ALONE = (
    "one round alone: the server does not know that the client held the same rows in another one"
)
"""What an attack over rounds notes of a guess that could use no other round."""


def same_rows(observations: Sequence[Observation]) -> list[list[int]]:
    """Positions of the observations in groups of the same rows, in the order of the rounds.

    The server knows it by the protocol: a client that used all the rows that it owns, as it does
    under FedSGD with a batch of all its rows or FedAvg without ``client_rows``, used the same ones
    in every such round. A client that draws some of its rows, a cohort, which is drawn anew in each
    round, and a reply of which ``all_rows`` is not granted are groups of their own. So are replies
    that contradict one another in the granted number, classes or lengths of the examples, and those
    of other tensors.
    """
    groups: dict[Hashable, list[int]] = {}
    for position in sorted(range(len(observations)), key=lambda i: observations[i].key):
        seen = observations[position]
        known = seen.knowledge
        if known.all_rows and known.cohort == 1:
            facts = (known.num_examples, known.labels, known.lengths)
            which: Hashable = (seen.key.client, seen.kind, tuple(seen.received), *facts)
        else:
            which = seen.key
        groups.setdefault(which, []).append(position)
    return list(groups.values())
