"""Membership attacks in numbers: AUC and true positive rates, by defense, attack and control."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from experiments.analysis.statistics import summary
from experiments.wording.defense_names import defense_name
from experiments.wording.names import options, show, title
from fedsim.files import Record
from fedsim.records import ScoreRow

METRICS = {
    "membership_auc": "AUC",
    "membership_tpr_1": "TPR at FPR 1 %",
    "membership_tpr_01": "TPR at FPR 0.1 %",
}
"""Metric -> its printed name."""


class MembershipFinding(Record):
    """One metric of one attack under one defense, with its 95 % interval over clients."""

    cell: str
    defense: str
    attack: str
    control: str
    metric: str
    members: int
    mean: float
    low: float | None
    high: float | None

    def text(self) -> str:
        """One line."""
        interval = "" if self.low is None else f" [{show(self.low, '1')}, {show(self.high, '1')}]"
        return (
            f"{self.cell}  {self.defense}; {self.attack}; {self.control}: "
            f"{METRICS[self.metric]} {show(self.mean, '1')}{interval}, {self.members} members"
        )


class _Group(NamedTuple):
    cell: str
    defense: str
    attack: str
    control: str
    metric: str


def membership(rows: Sequence[ScoreRow]) -> list[MembershipFinding]:
    """Means over members, of clients only; jobs without scores count as guessing at random."""
    groups: dict[_Group, list[ScoreRow]] = defaultdict(list)
    for row in rows:
        if row.value is not None and row.probe == "none" and row.control != "second_client":
            defense = defense_name(row.defense, row.defense_options)
            control = "the update" if row.control == "none" else title(row.control)
            name = options(row.attack_options)
            groups[_Group(row.cell, defense, name, control, row.metric)].append(row)
    found = []
    for group, own in groups.items():
        values = [row.value for row in own if row.value is not None]
        clients = [(row.seed, row.client) for row in own]
        known = summary(values, clients, better="higher", seed=0)
        found.append(
            MembershipFinding(
                **group._asdict(),
                members=len(own),
                mean=known.mean,
                low=known.low,
                high=known.high,
            )
        )
    return found
