"""A calibration: a run folder that gets one cell for each strength that is tried."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from attacks.scheduling.ledger import Ledger
from experiments.analysis.held import SHARES, Held, Level, hold
from experiments.console import Console
from experiments.decision.answer import (
    Answer,
    Cost,
    FamilyAnswer,
    Outcome,
    ReachedTarget,
    Tried,
)
from experiments.decision.families import FEWEST_SEEDS, UNDEFENDED
from experiments.decision.question import CalibrationTask
from experiments.decision.search import bisect, looks, shared
from experiments.decision.targets import (
    at_end,
    by_seed,
    check_clients,
    check_measured,
    check_task,
    costs,
    unit_of,
)
from experiments.decision.trial import CellTrial
from experiments.plan.cells import Cell, chain_tables
from experiments.plan.entries import entries
from experiments.plan.folder import Run, note_provenance
from experiments.plan.rehearsal import rehearse
from experiments.report.details import clause
from experiments.stages.attack import Attackers, attackers
from experiments.stages.integrity import check_captures
from experiments.stages.simulate import Simulator
from experiments.stages.utility import spent
from experiments.wording.names import NO_DEFENSE, options
from fedsim.api.victims import Victims
from fedsim.records import MAIN, PRIOR_ONLY, AttackKey
from fedsim.store.files import remove_temporaries

Place: TypeAlias = tuple[int, int]
"""Number of a family and of a strength."""
NONE: Place = (-1, -1)


@dataclass
class Calibration:
    """A search that is going on.

    With targets the weakest strength that holds them is searched for, without any the strongest
    that costs no more than was asked: then nothing is attacked, and all seeds are trained.

    Attributes:
        task: what is searched for.
        root: the run folder.
    """

    task: CalibrationTask
    root: Path
    console: Console
    _places: list[Place] = field(default_factory=list)
    _tried: dict[Place, Tried] = field(default_factory=dict)
    _chosen: list[Place] = field(default_factory=list)
    _working: Mapping[AttackKey, str] = field(default_factory=dict)
    _seeds: int = FEWEST_SEEDS
    _seconds: float = 0.0

    def answer(self) -> Answer:
        """Search every family; what an earlier command did is not done again.

        Raises:
            ConfigError: a defense does not fit the task, or the clients are too few to show it.
            StoreError: captures of an earlier command were altered.
        """
        with ExitStack() as stack:
            run, team = self._run(), None
            if self.task.targets:
                ledger = stack.enter_context(Ledger(self.root / "jobs.sqlite"))
                remove_temporaries(self.root)
                team = stack.enter_context(attackers(run, ledger, self.console))
            undefended = self._try(NONE, team)
            searched = team is None or undefended.word == "leaks"
            numbers = range(len(self.task.families))
            places = [self._search(number, team) if searched else None for number in numbers]
            if team is not None:
                self._price()
            answer = self._answer([*map(self._family, numbers, places)])
            note_provenance(self._run(), "simulate", self._seconds)
            if team is not None:
                note_provenance(self._run(), "attack", 0.0, team.devices, worked=team.ended > 0)
            return answer

    def _search(self, number: int, team: Attackers | None) -> int | None:
        """The weakest that holds, with one above it tried against gaps; or the last affordable."""
        count, lose = len(self.task.families[number].values), self.task.question.lose

        def tried(index: int) -> Tried:
            return self._try((number, index), team)

        if team is None:
            dear = bisect(count, lambda index: not tried(index).affordable(lose))
            last = (count if dear is None else dear) - 1
            return last if last >= 0 else None
        at = bisect(count, lambda index: tried(index).word == "holds")
        if at is not None:
            self._chosen.append((number, at))
            between = (at + count) // 2
            if between > at and (number, between) not in self._tried:
                tried(between)
        return at

    def _try(self, place: Place, team: Attackers | None) -> Tried:
        family = self.task.families[place[0]] if place != NONE else None
        self._places.append(place)
        known = self._attacked(place, team) if team is not None else self._priced(place)
        tried = Tried(
            name=family.member(place[1]) if family else NO_DEFENSE,
            index=place[1],
            value=family.values[place[1]] if family else None,
            **known,
        )
        self._tried[place] = tried
        said = tried.word if tried.reached else ", ".join(f"{c.lost.mean:.3g}" for c in tried.costs)
        self.console.expect("calibrate", 1)
        self.console.advance("calibrate", f"{tried.name}: {said}")
        return tried

    def _priced(self, place: Place) -> dict[str, Any]:
        """What one strength costs by all seeds."""
        if place != NONE:
            return {"costs": self._costs(place)}
        cells = self._cells(NONE)
        self._train(cells)
        check_measured(self.task.question.lose, at_end(cells[0]))
        return {}

    def _attacked(self, place: Place, team: Attackers) -> dict[str, Any]:
        """The word on one strength; without a defense by every client."""
        cells, targets = self._cells(place, captured=True), self.task.targets
        self._train(cells)
        trial = CellTrial(cells, team, targets)
        clients, question = trial.clients, self.task.question
        sizes = [len(clients)] if place == NONE else looks(question.group, len(clients))
        strengths = [len(family.values) for family in self.task.families]
        errors = shared(question.error, strengths, len(sizes), len(self._named), len(targets))
        if place == NONE:
            check_task(targets, trial.task)
            check_measured(question.lose, at_end(cells[0]))
            check_clients(targets, errors.holds, len(clients))
        for size in sizes:
            seen = trial.seen(clients[:size], self.task.experiment.verdict, self._working)
            held = hold(seen, targets, errors)
            if held.word == "leaks":
                break
        if place == NONE:
            self._working = dict.fromkeys(seen.beating, "")
        return {
            "word": held.word,
            "target": held.level.target.name,
            "reached": tuple(_reached(level, self._named) for level in held.levels),
            "clients": size,
            "available": len(clients),
            "jobs": trial.jobs,
            "reason": self._why_open(held, trial) if held.word == "open" else "",
        }

    def _price(self) -> None:
        """What each that holds loses, by more seeds where few are not sure.

        All of them get the same seeds, by which they are compared.
        """
        few, most = FEWEST_SEEDS, self.task.question.seeds
        counts = (few,) if self.task.experiment.utility_seeds or few == most else (few, most)
        for self._seeds in counts:
            compared = len(counts) * len(self._chosen)  # the least of several means is chosen
            for place in self._chosen:
                priced = {"costs": self._costs(place, compared)}
                self._tried[place] = self._tried[place].model_copy(update=priced)
            if all(cost.sure for place in self._chosen for cost in self._tried[place].costs):
                break

    def _costs(self, place: Place, compared: int = 1) -> tuple[Cost, ...]:
        here, base = self._cells(place), self._cells(NONE)
        self._train([*base, *here])
        ends = by_seed(here), by_seed(base), by_seed(base, start=True)
        return costs(self.task.question.lose, *ends, compared)

    def _train(self, cells: Sequence[Cell]) -> None:
        """Train what is not trained yet, after a rehearsal."""
        pending = [cell for cell in cells if not cell.simulated]
        for cell in cells:
            if cell.simulated:
                check_captures(cell)
        started = time.monotonic()
        rehearse(pending)
        self.console.expect("simulate", len(pending))
        with Simulator() as simulator:  # whose clients would keep the attacks' CPUs on Ray
            for cell in pending:
                simulator.simulate(cell)
                self.console.advance("simulate", cell.name)
        self._seconds += time.monotonic() - started

    def _why_open(self, held: Held, trial: CellTrial) -> str:
        """What a word of holding lacks, or else that more clients are."""
        unit = unit_of(MAIN[trial.task.modality])
        known = [
            str(clause(reason, self._named[reason.attack] if reason.attack else "", unit))
            for reason in held.reasons
        ]
        doubtful = [level for level in held.levels if level.mean and not level.target.limit]
        if any(level.target.name in SHARES for level in doubtful):
            known.append("an example came back, and that is not surely more than chance")
        return "; ".join(known) or f"all {len(trial.clients)} clients were attacked"

    def _family(self, number: int, at: int | None) -> FamilyAnswer:
        family, lose = self.task.families[number], self.task.question.lose
        tried = [self._tried[place] for place in sorted(self._tried) if place[0] == number]
        outcome: Outcome = "open"
        if at is not None:
            outcome = "holds" if self._tried[number, at].affordable(lose) else "costs too much"
        elif not self.task.targets:
            outcome = "costs too much"
        elif tried and tried[-1].word == "leaks" and tried[-1].index == len(family.values) - 1:
            outcome = "leaks"
        return FamilyAnswer(
            title=family.title,
            option=family.strength.option if family.strength else None,
            values=family.values,
            outcome=outcome,
            tried=tuple(tried),
            chosen=at,
            defense=None if at is None else family.defense(at),
            epsilon="" if at is None else self._epsilon((number, at)),
        )

    def _epsilon(self, place: Place) -> str:
        """By both relations of neighbours, of a cell's run; the search is not in it."""
        cell = self._cells(place)[0]
        known = spent(cell).get(cell.config.federation.rounds)
        return str(known) if known else ""

    def _answer(self, families: Sequence[FamilyAnswer]) -> Answer:
        affordable = {
            number: family.costs[0].lost.mean if family.costs else 0.0
            for number, family in enumerate(families)
            if family.outcome == "holds"
        }
        undefended, experiment = self._tried[NONE], self.task.experiment
        cells = self._cells(NONE, captured=True) if self.task.targets else []
        keys = [key for cell in cells for key in Victims(cell).keys]
        named = ", ".join(map(str, sorted({key.round for key in keys})))
        rounds = f"round{'s' * (',' in named)} {named} of {experiment.federation.rounds}"
        strengths = sum(len(family.values) for family in self.task.families) + 1
        return Answer(
            name=experiment.name,
            question=self.task.question,
            rows=f"{experiment.task.dataset}, {experiment.task.split}",
            rounds=rounds if keys else "",
            seeds=tuple(c.config.seed for c in cells) if cells else self.task.seeds,
            attacks=tuple(self._named.values()),
            undefended=undefended,
            families=tuple(families),
            chosen=min(affordable, key=lambda number: affordable[number], default=None),
            jobs=undefended.jobs + sum(family.jobs for family in families),
            grid=strengths * len(keys) * (len(self._named) + 1),
        ).sealed()

    @cached_property
    def _named(self) -> dict[AttackKey, str]:
        """Of each attack that rebuilds rows, the options written: ``bayes (steps=300)``."""
        names = {}
        for entry in entries(self.task.experiment):
            if entry.infers == "rows" and entry.key.attack != PRIOR_ONLY:
                rest = {k: v for k, v in entry.table.items() if k not in ("name", "adaptive")}
                notes = (options(json.dumps(rest)), "adaptive" * entry.adaptive)
                written = ", ".join(filter(None, notes))
                name = entry.key.attack
                names[entry.key] = f"{name} ({written})" if written else name
        return names

    def _run(self) -> Run:
        """The run folder with all strengths, in an order that does not depend on the search."""
        families = self.task.families
        every, held = (
            [families[number].defense(index) for number, index in sorted({*places} - {NONE})]
            for places in (self._places, self._chosen)
        )
        return Run.create(self.task.plan(every, held, self._seeds), self.root)

    def _cells(self, place: Place, *, captured: bool = False) -> list[Cell]:
        """Those of a strength, one for each seed: that train all rounds, or that are attacked."""
        experiment = self.task.experiment
        known = place != NONE
        entry = self.task.families[place[0]].defense(place[1]) if known else UNDEFENDED
        tables = chain_tables(dict(entry), "defenses")
        return [
            cell
            for cell in self._run().cells
            if cell.config.defense == tables
            and (
                cell.experiment.name == experiment.name
                if captured
                else cell.config.federation.rounds == experiment.federation.rounds
            )
        ]


def _reached(level: Level, names: Mapping[AttackKey, str]) -> ReachedTarget:
    """A level in the units of its target."""
    target = level.target
    return ReachedTarget(
        target=target.name,
        attack=names[level.attack] if level.attack else "",
        clients=level.clients,
        mean=target.shown(level.mean),
        low=target.shown(level.low),
        high=target.shown(level.high),
        blind=None if level.blind is None else target.shown(level.blind),
    )
