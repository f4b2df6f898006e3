"""What keeps a verdict open beside the scores: jobs that did not end, members that may be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.analysis.evidence import Kind, Reason
from experiments.analysis.membership import Finding
from fedsim.records import LOST

_HIGH_AUC = 0.75
"""Mean AUC, or true positive rate, that no word of holding stands beside, though the members are
too few to show it. Beside four fresh rows a blind attack is above it in 4 % of the draws, above
.625 in 20 % (the mean of four uniform numbers); at 1 nothing would be above it."""


def broken(jobs: Mapping[str, int]) -> int:
    """How many jobs did not end as they should have."""
    return sum(jobs[status] for status in LOST)


def unsure(members: Finding | None) -> Iterator[Reason]:
    """That members may be told, though it is not shown."""
    if members and not members.tells and (members.mean > _HIGH_AUC or members.lost):
        numbers = {"mean": members.mean, "members": float(members.n), "lost": float(members.lost)}
        yield Reason(kind="members", metric=members.metric, numbers=numbers)


def lost(jobs: Mapping[str, int]) -> Iterator[Reason]:
    """Jobs that did not end as they should have."""
    kinds: dict[str, Kind] = {
        "failed": "failed",
        "timeout": "unfinished",
        "exhausted": "exhausted",
        "interrupted": "interrupted",
    }
    for status, kind in kinds.items():
        if jobs[status]:
            yield Reason(kind=kind, numbers={"jobs": float(jobs[status])})
