"""A calibration: a run folder that gets one cell for each strength that is tried."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from attacks.scheduling.ledger import Ledger
from experiments.bounds.noise import least_noise, over_rounds
from experiments.console import Console
from experiments.decision import plan as planned
from experiments.decision.answer import (
    Answer,
    Cost,
    FamilyAnswer,
    Outcome,
    Question,
    ReachedTarget,
    Tried,
)
from experiments.decision.bench import Bench
from experiments.decision.cost import at_end, at_start, by_seed, check_measured, costs
from experiments.decision.families import SearchedFamily
from experiments.decision.search import Decision, Errors, Word, decide, weakest
from experiments.decision.targets import Target, check_clients, check_task, clients_needed
from experiments.decision.trial import CellTrial
from experiments.decision.wording import blind_floor
from experiments.plan.cells import Cell, chain_tables
from experiments.plan.config import ExperimentConfig, Plan
from experiments.plan.entries import entries
from experiments.plan.folder import Run
from experiments.stages.attack import attackers
from experiments.stages.privacy import owned
from experiments.wording.defense_names import NO_DEFENSE
from experiments.wording.names import options
from fedsim.api.victims import Victims
from fedsim.files import remove_temporaries
from fedsim.records import PRIOR_ONLY
from fedsim.visible import say

Place: TypeAlias = tuple[int, int]
"""Number of a family and of a strength."""
NONE: Place = (-1, -1)


@dataclass
class Calibration:
    """A search that is going on.

    Attributes:
        experiment: as it was given.
        families: to search, one after another.
        targets: what is to be held.
        question: the same with all else that the answer depends on.
        root: the run folder.
    """

    experiment: ExperimentConfig
    families: Sequence[SearchedFamily]
    targets: Sequence[Target]
    question: Question
    root: Path
    console: Console
    _tried: dict[Place, Tried] = field(default_factory=dict)
    _held: list[Place] = field(default_factory=list)
    _working: frozenset[str] = frozenset()
    _seeds: int = planned.FEWEST_SEEDS

    def answer(self) -> Answer:
        """Search every family; what an earlier command did is not done again.

        Raises:
            ConfigError: a defense does not fit the task, or the clients are too few to show it.
        """
        with self._bench() as bench:
            self._at(bench, NONE)
            works = self._tried[NONE].word == "leaks"
            places = [
                self._weakest(bench, number) if works else None
                for number in range(len(self.families))
            ]
            spent = self._costs(bench)
            answers = [
                self._family(number, place, () if place is None else spent[number, place])
                for number, place in enumerate(places)
            ]
            bench.note(self._run([*self._tried]))
            return self._answer(bench, answers)

    def grid(self) -> list[list[Tried]]:
        """The word on every strength of each family, with every client attacked at once.

        What a search is compared with, which it leaves as it is; its errors are shared by all of
        these strengths.
        """
        places = [
            (i, j) for i, family in enumerate(self.families) for j in range(len(family.values))
        ]
        whole = self.question.model_copy(update={"group": sys.maxsize})
        grid = replace(self, question=whole, _tried={}, _held=[])
        count = len(places) + 1
        grid.errors = Errors(
            whole.error / (count * len(self.attacks) * len(self.targets)), whole.error / count
        )
        with grid._bench() as bench:
            grid._at(bench, NONE)
            tried = {place: grid._at(bench, place, every=True) for place in places}
            bench.note(grid._run(places))
        return [
            [tried[i, j] for j in range(len(family.values))]
            for i, family in enumerate(self.families)
        ]

    @contextmanager
    def _bench(self) -> Iterator[Bench]:
        with ExitStack() as stack:
            run = self._run([NONE])
            ledger = stack.enter_context(Ledger(self.root / "jobs.sqlite"))
            remove_temporaries(self.root)
            team = stack.enter_context(attackers(run, ledger, self.console))
            yield Bench(team, ledger, self.console)

    def _weakest(self, bench: Bench, number: int) -> int | None:
        """The weakest that holds; one further strength above it is tried against gaps."""
        strengths = len(self.families[number].values)

        def word(index: int, every: bool) -> Word:
            return self._at(bench, (number, index), every=every).word

        index = weakest(strengths, word)
        if index is None:
            return None
        self._held.append((number, index))
        between = (index + strengths) // 2
        if between > index and (number, between) not in self._tried:
            self._at(bench, (number, between))
        return index

    def _at(self, bench: Bench, place: Place, *, every: bool = False) -> Tried:
        """The word on one strength, by as many clients as it takes or by every one."""
        run = self._run([*self._tried, place])
        cells = self._cells(run, place)
        bench.simulate(cells)
        can_guess = self.experiment.auxiliary is not None or _is_image(cells[0])
        rule = self.experiment.verdict
        asked = self.targets if every else tuple(target.searched for target in self.targets)
        trial = CellTrial(cells, bench.team, asked, self._working, can_guess, rule)
        clients = trial.clients
        if place == NONE:
            self._check(cells[0], len(clients))
        group = self.question.group
        decision = decide(trial, self.attacks, asked, clients, self.errors, group, every=every)
        if place == NONE:
            self._working = frozenset(
                attack for attack in trial.controls if self._leaks_alone(trial, attack)
            )
        family = self.families[place[0]] if place != NONE else None
        tried = Tried(
            name=family.member(place[1]) if family else NO_DEFENSE,
            index=place[1],
            value=family.values[place[1]] if family else None,
            word=decision.word,
            attack=self._named[decision.attack],
            target=decision.target,
            reached=tuple(
                _reached(target, decision, trial, _nats(cells), self._named)
                for target in self.targets
            ),
            utility=at_end(cells[0]) if self._to_the_end else {},
            clients=decision.clients,
            available=len(clients),
            jobs=bench.jobs(cells),
            reason=decision.reason or self._ran_out(decision),
            every=every,
        )
        self._tried[place] = tried
        bench.say(tried)
        if place == NONE:
            self._warn(tried)
        return tried

    def _ran_out(self, decision: Decision) -> str:
        """Why it is open where the clients ran out; else empty."""
        if decision.word != "open":
            return ""
        target = next(target for target in self.targets if target.name == decision.target)
        mean = decision.bounds[decision.attack][decision.target].mean
        ran_out = f"all {decision.clients} clients were attacked"
        if mean >= target.passes:
            return ran_out
        needed = clients_needed(target, mean, self.errors.holds)
        return f"{ran_out}, and at this mean it takes about {needed:,}"

    def _warn(self, undefended: Tried) -> None:
        """Say before anything is searched which target so few clients cannot show."""
        for target, reached in zip(self.targets, undefended.reached, strict=True):
            if reached.blind is not None and (
                floor := blind_floor(target, reached.blind, undefended.available, self.errors.holds)
            ):
                say(floor, error=True)

    def _leaks_alone(self, trial: CellTrial, attack: str) -> bool:
        group, errors = self.question.group, self.errors
        return decide(trial, [attack], self.targets, trial.clients, errors, group).word == "leaks"

    def _family(self, number: int, at: int | None, spent: tuple[Cost, ...]) -> FamilyAnswer:
        family = self.families[number]
        here = [trial for place, trial in self._tried.items() if place[0] == number]
        tried = sorted(here, key=lambda trial: trial.index)
        below = [t for t in tried if at is None or t.index < at]
        outcome: Outcome = "open"
        if at is not None:
            lost = {price.measure: price.lost.mean for price in spent}
            limits = self.question.lose.items()
            affordable = all(lost.get(name, math.inf) <= limit for name, limit in limits)
            outcome = "holds" if affordable else "costs too much"
        elif tried and tried[-1].word == "leaks" and tried[-1].index == len(family.values) - 1:
            outcome = "leaks"
        return FamilyAnswer(
            title=family.title,
            option=family.strength.option if family.strength else None,
            values=family.values,
            outcome=outcome,
            tried=tuple(tried),
            weakest=at,
            leaking=max((trial.index for trial in below if trial.word == "leaks"), default=-1),
            defense=None if at is None else family.defense(at),
            costs=spent,
        )

    def _costs(self, bench: Bench) -> dict[Place, tuple[Cost, ...]]:
        """What each defense that holds loses against none, by more seeds where few are not sure.

        All of them get the same seeds, by which they are compared.
        """
        few, most = planned.FEWEST_SEEDS, self.question.seeds
        looks = 1 if self.experiment.utility_seeds or few == most else 2
        spent: dict[Place, tuple[Cost, ...]] = {}
        for seeds in (few, most)[:looks]:
            self._seeds = seeds
            for place in self._held:
                run = self._run([*self._tried])
                here, base = self._trained(run, place), self._trained(run, NONE)
                bench.simulate([*base, *here])
                ends, start = (by_seed(here), by_seed(base)), by_seed(base, at_start)
                compared = looks * len(self._held)  # the least of several means is chosen
                spent[place] = costs(self.question.lose, *ends, start, compared)
            if all(cost.sure for prices in spent.values() for cost in prices):
                break
        return spent

    def _answer(self, bench: Bench, families: Sequence[FamilyAnswer]) -> Answer:
        affordable = [i for i, family in enumerate(families) if family.outcome == "holds"]
        undefended = self._tried[NONE]
        cells = self._cells(self._run([*self._tried]), NONE)
        captures = sum(len(Victims(cell).keys) for cell in cells)
        strengths = sum(len(family.values) for family in self.families) + 1
        return Answer(
            name=self.experiment.name,
            question=self.question,
            rows=f"{self.experiment.task.dataset}, {self.experiment.task.split}",
            rounds=self._rounds(cells),
            trainings=len(cells),
            attacks=tuple(self._named[label] for label in self.attacks),
            undefended=undefended,
            families=tuple(families),
            chosen=min(affordable, key=lambda i: _loss(families[i]), default=None),
            jobs=undefended.jobs + sum(family.jobs for family in families),
            grid=strengths * captures * (len(self.attacks) + 1),
        ).sealed()

    def _rounds(self, cells: Sequence[Cell]) -> str:
        """Which rounds were attacked."""
        every = sorted({key.round for cell in cells for key in Victims(cell).keys})
        named = ", ".join(map(str, every))
        return f"round{'s' * (len(every) > 1)} {named} of {self.experiment.federation.rounds}"

    @cached_property
    def attacks(self) -> list[str]:
        """Labels of the attacks that rebuild rows."""
        chosen = [entry for entry in entries(self.experiment) if entry.infers == "rows"]
        return [entry.label for entry in chosen if entry.key.attack != PRIOR_ONLY]

    @cached_property
    def _named(self) -> dict[str, str]:
        """Of each label, the attack with the options written: ``bayes (steps=300, adaptive)``."""
        names = {"": ""}
        for entry in entries(self.experiment):
            rest = {k: v for k, v in entry.table.items() if k not in ("name", "adaptive")}
            notes = filter(None, (options(json.dumps(rest)), "adaptive" * entry.adaptive))
            written = ", ".join(notes)
            name = entry.key.attack
            names[entry.label] = f"{name} ({written})" if written else name
        return names

    @cached_property
    def errors(self) -> Errors:
        """Of one bound."""
        sizes = [len(family.values) for family in self.families]
        return Errors.shared(self.question.error, sizes, len(self.attacks), len(self.targets))

    @property
    def _to_the_end(self) -> bool:
        """Whether the cells that are attacked train all rounds."""
        last = planned.last_round(self.experiment, self.families)
        return last == self.experiment.federation.rounds

    def _run(self, places: Sequence[Place]) -> Run:
        """The run folder with these strengths, in an order that does not depend on the search."""
        ordered = sorted({*places} - {NONE})
        defenses = [self.families[number].defense(index) for number, index in ordered]
        held = [self.families[number].defense(index) for number, index in sorted(self._held)]
        parts = [planned.attacked(self.experiment, self.families, defenses)]
        seeds = self._seeds
        if held and (trained := planned.trained(self.experiment, self.families, held, seeds)):
            parts.append(trained)
        return Run.create(Plan(name=self.experiment.name, experiments=tuple(parts)), self.root)

    def _cells(self, run: Run, place: Place) -> list[Cell]:
        """Those that are attacked, one for each seed."""
        name = self.experiment.name
        return [cell for cell in self._all_cells(run, place) if cell.experiment.name == name]

    def _trained(self, run: Run, place: Place) -> list[Cell]:
        """Those that train all rounds, one for each seed."""
        cells = self._all_cells(run, place)
        rounds = self.experiment.federation.rounds
        return [cell for cell in cells if cell.config.federation.rounds == rounds]

    def _all_cells(self, run: Run, place: Place) -> list[Cell]:
        entry = planned.UNDEFENDED
        if place != NONE:
            entry = self.families[place[0]].defense(place[1])
        tables = chain_tables(dict(entry), "defenses")
        return [cell for cell in run.cells if cell.config.defense == tables]

    def _check(self, cell: Cell, clients: int) -> None:
        """Refuse targets that do not fit the data or that so few clients can never show."""
        check_task(self.targets, Victims(cell).task)
        check_measured(self.question.lose, at_end(cell))
        check_clients(self.targets, self.errors.holds, clients)


def _is_image(cell: Cell) -> bool:
    """Whether a blind guess without any rows is a grey image, and not an empty text."""
    return Victims(cell).task.modality == "image"


def _nats(cells: Sequence[Cell]) -> float:
    """The most that the captured replies tell of an example by clipping and noise, or infinite."""
    nats_of = []
    for cell in cells:
        rows = owned(cell)
        budget = least_noise(cell.config, rows)
        nats = budget.clipped if budget else math.inf
        rounds = {key.round for key in Victims(cell).keys}
        nats_of.append(over_rounds(cell.config, rows, nats) if len(rounds) > 1 else nats)
    return max(nats_of, default=math.inf)


def _reached(
    target: Target, decision: Decision, trial: CellTrial, nats: float, names: Mapping[str, str]
) -> ReachedTarget:
    """The worst of the attacks by one target, in its own units."""
    bounds = {attack: by_target[target.name] for attack, by_target in decision.bounds.items()}
    worst = max(bounds, key=lambda attack: (bounds[attack].high, bounds[attack].mean))
    blind = trial.blind[target.name].values()
    return ReachedTarget(
        target=target.name,
        attack=names[worst],
        clients=bounds[worst].clients,
        mean=target.shown(bounds[worst].mean),
        low=target.shown(max(bound.low for bound in bounds.values())),
        high=target.shown(bounds[worst].high),
        blind=target.shown(fmean(blind)) if blind else None,
        bound=target.bound(fmean(blind), nats) if blind else None,
    )


def _loss(family: FamilyAnswer) -> float:
    return family.costs[0].lost.mean if family.costs else 0.0
