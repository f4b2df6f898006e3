"""Attacks on the cells of one defense, for more and more clients."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from experiments.analysis.frames import PLACE, jobs_of_attacks, score_frame
from experiments.analysis.held import SHARES, Target
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.paired import scored
from experiments.analysis.power import Search
from experiments.analysis.verdicts import Evidence, metrics
from experiments.plan.cells import Cell
from experiments.plan.config import VerdictRule
from experiments.plan.entries import entries
from experiments.stages.attack import Attackers
from experiments.stages.score import Scorer
from experiments.stages.search_errors import search_errors
from fedsim.api.victims import Victims
from fedsim.records import STATUSES, AttackKey
from fedsim.tasks.base import Task


@dataclass
class CellTrial:
    """Attacks at one strength, on the cells of all seeds: a client is the same one in each."""

    cells: Sequence[Cell]
    team: Attackers
    targets: Sequence[Target]
    _attacked: set[int] = field(default_factory=set)

    @cached_property
    def clients(self) -> list[int]:
        """The clients, or cohorts, with a capture; probes are none."""
        known = [(scorer.victims, key) for scorer in self._scorers for key in scorer.victims.keys]
        return sorted({k.client for v, k in known if v.records[k].probe == "none"})

    @cached_property
    def task(self) -> Task:
        """Of the cells."""
        return Victims(self.cells[0]).task

    @property
    def jobs(self) -> int:
        """Attacks on captures that were run, by earlier commands too."""
        names = {cell.name for cell in self.cells}
        return sum(r.cell in names and r.state in STATUSES for r in self.team.ledger.rows())

    def seen(
        self, clients: Collection[int], rule: VerdictRule, working: Mapping[AttackKey, str]
    ) -> Evidence:
        """What all attacks on these clients show, with their controls.

        Args:
            clients: on which they are run, beside those that were attacked before.
            rule: the smallest effect that counts.
            working: attacks that are shown to leak undefended victims.
        """
        labels = {e.label for e in entries(self.cells[0].experiment) if e.infers == "rows"}
        for cell in self.cells:
            self.team.submit_some(cell, labels, clients)
        self.team.drain()
        self._attacked |= {*clients}
        rows = [row for scorer in self._scorers for row in scorer.rows(self._attacked)]
        cells = {cell.name: "" for cell in self.cells}
        scores = score_frame((row for row in rows if row.probe == "none"), cells)
        whole = working and self._attacked >= {*self.clients}
        errors = [each for cell in self.cells for each in search_errors(cell)] if whole else []
        return Evidence(
            place=DefenseInSetting(*scores[PLACE].iloc[0]),
            here={name: scored(scores, name) for name in self._metrics},
            modality=self.task.modality,
            rule=rule,
            jobs=jobs_of_attacks(scores),
            working=working,
            searches=Search.by_attack(errors),
        )

    @property
    def _metrics(self) -> tuple[str, ...]:
        means = [target.name for target in self.targets if target.name not in SHARES]
        return tuple(dict.fromkeys((*metrics(self.task.modality), *means)))

    @cached_property
    def _scorers(self) -> list[Scorer]:
        return [Scorer(Victims(cell), metrics=self._metrics) for cell in self.cells]
