"""The strongest strength of each defense that costs no more than a share of the utility.

So that defenses are compared at equal utility: what is written stands each of them at the
strength at which it loses as much as the others, for ``fedsim run`` to attack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tomli_w

from experiments.console import Console
from experiments.decision.answer import Cost, Question
from experiments.decision.bench import train
from experiments.decision.calibrate import NONE, Place
from experiments.decision.cost import at_end, at_start, by_seed, check_measured, costs
from experiments.decision.plan import UNDEFENDED
from experiments.decision.question import FOLDER, CalibrationTask
from experiments.decision.search import bisect
from experiments.decision.wording import share_lost
from experiments.plan.cells import Cell, chain_tables
from experiments.plan.config import ExperimentConfig, parse_experiment
from experiments.plan.folder import Run, note_provenance
from experiments.wording.defense_names import compact
from fedsim.files import Sealed, write_bytes, write_json

Limit: TypeAlias = Literal["bracketed", "even the strongest", "not even the weakest"]
"""Which strengths of a family are affordable: some, all, or none."""


class Spent(Sealed):
    """What one strength costs. No cost is known where the training diverged."""

    name: str
    value: float | None
    costs: tuple[Cost, ...]
    affordable: bool


class Strongest(Sealed):
    """The answer for one family.

    Attributes:
        title: display name with the options that are fixed.
        option: the option that is searched; None for a family of a single member.
        limit: which of its strengths are affordable.
        tried: in the order of strength.
        defense: the entry of an experiment's ``defenses`` for the strongest affordable one.
    """

    title: str
    option: str | None
    limit: Limit
    tried: tuple[Spent, ...]
    defense: dict[str, Any] | None

    @property
    def at(self) -> Spent | None:
        """The strongest affordable one of those that were tried."""
        return next((trial for trial in reversed(self.tried) if trial.affordable), None)


class Afforded(Sealed):
    """The answer: each family in the order of the experiment."""

    name: str
    question: Question
    seeds: tuple[int, ...]
    families: tuple[Strongest, ...]


@dataclass
class Affordable:
    """A search by utility alone: nothing is attacked.

    Assumes that a stronger defense costs more. Every strength is trained under all seeds, and its
    cost is the mean over them.
    """

    task: CalibrationTask
    root: Path
    console: Console
    _tried: dict[Place, Spent] = field(default_factory=dict)

    def answer(self) -> Afforded:
        """Search every family; what an earlier command trained is not trained again.

        Raises:
            ConfigError: a defense does not fit the task, or it has no measure of that name.
        """
        base = self._trained(NONE)
        check_measured(self.task.question.lose, at_end(base[0]))
        strongest = tuple(self._family(number) for number in range(len(self.task.families)))
        return Afforded(
            name=self.task.experiment.name,
            question=self.task.question,
            seeds=self.task.seeds,
            families=strongest,
        ).sealed()

    def _family(self, number: int) -> Strongest:
        family = self.task.families[number]
        count = len(family.values)
        dear = bisect(
            count, lambda index: "open" if self._spent(number, index).affordable else "holds"
        )
        strongest = count - 1 if dear is None else dear - 1
        limit: Limit = "bracketed"
        if strongest < 0:
            limit = "not even the weakest"
        elif dear is None:
            limit = "even the strongest"
        tried = sorted(place for place in self._tried if place[0] == number)
        return Strongest(
            title=family.title,
            option=family.strength.option if family.strength else None,
            limit=limit,
            tried=tuple(self._tried[place] for place in tried),
            defense=family.defense(strongest) if strongest >= 0 else None,
        )

    def _spent(self, number: int, index: int) -> Spent:
        family, place = self.task.families[number], (number, index)
        here, base = self._trained(place), self._trained(NONE)
        lose = self.task.question.lose
        start = by_seed(base, at_start)
        lost = {cost.measure: cost for cost in costs(lose, by_seed(here), by_seed(base), start)}
        spent = Spent(
            name=family.member(index),
            value=family.values[index],
            costs=tuple(lost.values()),
            affordable=all(name in lost and lost[name].lost.mean <= lose[name] for name in lose),
        )
        self._tried[place] = spent
        self.console.expect("calibrate", 1)
        said = "affordable" if spent.affordable else "too dear"
        self.console.advance("calibrate", f"{spent.name}: {said}")
        return spent

    def _trained(self, place: Place) -> list[Cell]:
        """The cells of one strength, one for each seed."""
        entry = UNDEFENDED
        if place != NONE:
            entry = self.task.families[place[0]].defense(place[1])
        defenses = [
            self.task.families[number].defense(index)
            for number, index in sorted({*self._tried, place} - {NONE})
        ]
        run = Run.create(self.task.plan(defenses), self.root)
        tables = chain_tables(dict(entry), "defenses")
        cells = [cell for cell in run.cells if cell.config.defense == tables]
        note_provenance(run, "simulate", train(cells, self.console))
        return cells


def write_afforded(answer: Afforded, experiment: ExperimentConfig, root: Path) -> Path:
    """Write ``answer.json`` and ``equal.toml`` below the run folder; the path of the latter.

    The experiment has no defense and, of each family, the strongest affordable one.
    """
    folder = root / FOLDER
    write_json(folder / "answer.json", answer)
    table = experiment.model_dump(mode="json", exclude_none=True)
    table["name"] = f"{experiment.name}-equal"
    chosen = [family.defense for family in answer.families if family.defense is not None]
    table["defenses"] = [dict(UNDEFENDED), *chosen]
    whole = parse_experiment(table).model_dump(mode="json", exclude_none=True)
    path = folder / "equal.toml"
    write_bytes(path, tomli_w.dumps(whole).encode())
    return path


def lines(answer: Afforded) -> Iterator[str]:
    """The answer for a terminal: one line for each family."""
    limits = " and ".join(f"{100 * v:g} % of {k}" for k, v in answer.question.lose.items())
    yield f"The strongest that loses at most {limits}, mean of {len(answer.seeds)} seeds:"
    for strongest in answer.families:
        at = strongest.at
        if at is None:
            first = strongest.tried[0]
            yield f"- {strongest.title}: {strongest.limit}: {first.name} loses {_lost(first)}"
            continue
        name = f"{strongest.option}={compact(at.value)}" if strongest.option else "as it is"
        more = f", {strongest.limit}" if strongest.limit != "bracketed" and strongest.option else ""
        yield f"- {strongest.title}: {name}{more}; loses {_lost(at)}"


def _lost(spent: Spent) -> str:
    shown = ", ".join(map(share_lost, spent.costs))
    return shown or "what cannot be told, as its training diverged"
