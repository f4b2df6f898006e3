"""The rounds in which a client held the same rows, as far as the server can know."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from attacks.base import Job, Reconstruction
from fedsim.store.capture import Observation

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


def round_by_round(
    observations: Sequence[Observation],
    guess: Callable[[Sequence[int], Reconstruction | None], Reconstruction],
    job: Job,
) -> list[Reconstruction]:
    """One guess for each of a client's observations, from all rounds up to it with the same rows.

    When the time budget ends, later rounds keep the last guess.

    Args:
        observations: of one client.
        guess: takes the positions of the rounds so far and the guess of the last of them before.
        job: its time budget.
    """
    guesses: dict[int, Reconstruction] = {}
    for group in same_rows(observations):
        latest: Reconstruction | None = None
        for number, position in enumerate(group, 1):
            if latest is not None and job.expired:
                latest = replace(latest, expired=True)
            else:
                latest = guess(group[:number], latest)
            alone = len(group) == 1 < len(observations)
            guesses[position] = replace(latest, note=ALONE) if alone else latest
    return [guesses[position] for position in range(len(observations))]
