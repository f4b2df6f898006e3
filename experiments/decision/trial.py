"""Attacks on the cells of one defense, a group of clients at a time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TypeAlias

from experiments.analysis.hits import CLOSE, EXACT_METRIC
from experiments.analysis.power import counting_effect, shortfall
from experiments.decision.plan import UNDEFENDED
from experiments.decision.search import Score
from experiments.decision.targets import SHARES, Target, unit_of, whole_range
from experiments.plan.cells import Cell
from experiments.plan.config import VerdictRule
from experiments.plan.entries import Entry, allows_for, entries
from experiments.stages.attack import Attackers
from experiments.stages.coverage import THRESHOLDS, is_exact
from experiments.stages.score import Scorer
from fedsim.api.victims import Victims
from fedsim.capture import CaptureKey
from fedsim.records import LOST, MAIN, PRIOR_ONLY, ScoreRow, shown

Guessed: TypeAlias = dict[str, ScoreRow]
"""The scores of one guess at one example, by metric."""


@dataclass
class CellTrial:
    """Attacks at one strength, on the cells of all seeds: a client is the same one in each.

    A victim that an attack refused has the score of the blind guess, with which the attacker is
    left. A row that several clients hold counts as that of the first. ``blind`` has the blind
    guess's rescaled scores by target and client. ``working`` are the attacks that leak without a
    defense; ``can_guess`` is whether a blind guess has rows to learn from; ``rule`` has the
    smallest effect that counts.
    """

    cells: Sequence[Cell]
    team: Attackers
    targets: Sequence[Target]
    working: Collection[str] = ()
    can_guess: bool = True
    rule: VerdictRule = field(default_factory=VerdictRule)
    blind: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _broken: set[tuple[str, str]] = field(default_factory=set)
    _attacked: set[int] = field(default_factory=set)
    _means: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    _guessable: bool = False
    _doubtful: bool = False
    _holder: dict[int, int] = field(default_factory=dict)
    _ran: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))

    @property
    def clients(self) -> list[int]:
        """The clients, or cohorts, with a capture; probes are none."""
        keys = [(scorer, key) for scorer in self._scorers for key in scorer.victims.keys]
        return sorted(
            {key.client for place, key in keys if place.victims.records[key].probe == "none"}
        )

    def attack(
        self, attacks: Collection[str], clients: Sequence[int]
    ) -> Mapping[str, Mapping[str, Sequence[Score]]]:
        """Run the attacks, and score them."""
        labels = {*attacks, *(entry.label for entry in self._entries if _is_blind(entry))}
        for cell in self.cells:
            self.team.submit_some(cell, labels, clients)
        self.team.drain()
        leakage: dict[str, dict[str, list[Score]]] = {
            attack: {target.name: [] for target in self.targets} for attack in attacks
        }
        self._attacked |= {*clients}
        self._guessable |= any(map(self._comes_near, clients)) or self._guesses_by_chance(labels)
        for client in clients:
            scores = self._of_client(labels, client)
            for target in self._measured:
                for attack in attacks:
                    if values := scores[attack][target.name]:
                        score = _of_examples(target, values)
                        if target in self.targets:
                            leakage[attack][target.name].append(score)
                        by_target = self._means.setdefault(attack, defaultdict(dict))
                        by_target[target.name][client] = score.value
                for entry in filter(_is_blind, self._entries):
                    if values := scores[entry.label][target.name]:
                        self.blind[target.name][client] = _of_examples(target, values).value
        return leakage

    def faults(self) -> str:
        """Jobs that did not end as they should, and the lack of an adapted attack that ran."""
        if self._broken:
            return ", ".join(f"jobs of {name} {status}" for name, status in sorted(self._broken))
        if self._doubtful:
            return "an example came back exactly, and at other clients the like happens by chance"
        if self.cells[0].config.defense == (UNDEFENDED,):
            return ""
        ran = {label for label, done in self._ran.items() if 2 * sum(done) >= len(done)}
        if not self.can_guess:
            return "the blind guess is empty without rows of the attacker's own ([auxiliary])"
        keys = [entry.key for entry in self._entries if entry.label in ran]
        options = json.dumps(self.cells[0].config.defense)
        fitting = [key for key in keys if allows_for(key, options)]
        if not fitting:
            return "no attack that is adapted to the defense was run"
        working = [entry.key for entry in self._entries if entry.label in self.working]
        resting = [key for key in fitting if key in working]
        if not resting:
            return "no attack that is adapted to the defense is shown to work without one"
        labels = [entry.label for entry in self._entries if entry.key in resting]
        if self._below_blind(labels):
            return "the attacks that are adapted to the defense return less than a blind guess"
        return ""

    def _below_blind(self, labels: Collection[str]) -> bool:
        """Whether by some target all of these attacks are below the blind guess in the mean."""
        for target in self._measured:
            name, blind = target.name, self.blind[target.name]
            leads = [
                fmean(values[client] - blind[client] for client in both)
                for label in labels
                for values in [self._means.get(label, {}).get(name, {})]
                if (both := values.keys() & blind.keys())
            ]
            effect = counting_effect(unit_of(name), self.rule) / abs(target.high - target.low)
            if shortfall(leads, effect):
                return True
        return False

    @cached_property
    def _measured(self) -> tuple[Target, ...]:
        """The targets; beside shares of clients, of which most are 0, also the main metrics."""
        names = {target.name for target in self.targets}
        mains = [name for name in MAIN.values() if names & {*SHARES} and name not in names]
        return (*self.targets, *map(whole_range, mains))

    @property
    def controls(self) -> list[str]:
        """Labels of the attacks that allow for some defense."""
        return [entry.label for entry in self._entries if entry.adaptive or entry.estimates]

    def _of_client(self, labels: Collection[str], client: int) -> dict[str, dict[str, list[Score]]]:
        """Attack -> target -> score of each example that is the client's alone, or its first."""
        values_of: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
        chosen = [entry for entry in self._entries if entry.label in labels]
        for scorer in self._scorers:
            for key in scorer.victims.keys:
                if key.client != client:
                    continue
                guessed = {entry.label: self._guessed(scorer, entry, key) for entry in chosen}
                blind = next((guessed[e.label] for e in chosen if _is_blind(e)), [])
                for label, examples in guessed.items():
                    for i, rows in enumerate(examples):
                        nothing = blind[i] if i < len(blind) else {}
                        self._doubtful |= self._guessable and _came_back(rows, nothing)
                        first = next(iter(rows.values()))
                        again = self._is_again(first.row, client)
                        for target in self._measured:
                            if target.name not in {*rows, *SHARES}:  # of the other modality
                                continue
                            value = _score(target, rows, nothing, guessable=self._guessable)
                            counts = not again or (value and not target.limit)
                            if value is not None and counts:
                                answered = None if first.unscored else value
                                values_of[label][target.name].append(Score(value, answered))
        return values_of

    def _is_again(self, row: int | None, client: int) -> bool:
        """Whether another client held this row before, so that only a hit of it counts."""
        return row is not None and self._holder.setdefault(row, client) != client

    def _comes_near(self, client: int) -> bool:
        """Whether the blind guess at a client is so good that it may hit another by chance."""
        return any(
            row.value is not None and row.value >= CLOSE[row.metric]
            for scorer in self._scorers
            for key in scorer.victims.keys
            if key.client == client
            for entry in filter(_is_blind, self._entries)
            for row in scorer.attack_rows(entry, key)
            if row.metric in CLOSE
        )

    def _guesses_by_chance(self, labels: Collection[str]) -> bool:
        """Whether a private text was guessed for a client who does not hold it."""
        return any(
            row.value
            for scorer in self._scorers
            for entry in self._entries
            if entry.label in labels and not _is_blind(entry)
            for row in scorer.rows_for_others(entry, self._attacked)
        )

    def _guessed(self, scorer: Scorer, entry: Entry, key: CaptureKey) -> list[Guessed]:
        """The guess at each example of a capture."""
        examples: dict[int, Guessed] = defaultdict(dict)
        for row in scorer.attack_rows(entry, key):
            examples[row.example][row.metric] = row
        for row in examples[0].values() if not _is_blind(entry) else ():
            if row.status in {*LOST, "interrupted"}:
                self._broken.add((entry.label, shown(row.status)))  # a reason may hold a guess
            self._ran[entry.label].append(row.status == "done")
        return [examples[i] for i in sorted(examples)]

    @cached_property
    def _entries(self) -> list[Entry]:
        known = entries(self.cells[0].experiment)
        return [entry for entry in known if entry.infers == "rows"]

    @cached_property
    def _scorers(self) -> list[Scorer]:
        names = tuple(dict.fromkeys(self._metrics()))
        return [Scorer(Victims(cell), metrics=names) for cell in self.cells]

    def _metrics(self) -> Iterator[str]:
        modality = Victims(self.cells[0]).task.modality
        yield from (MAIN[modality], EXACT_METRIC[modality])
        yield from (target.name for target in self.targets if target.name not in SHARES)


def _is_blind(entry: Entry) -> bool:
    return entry.key.attack == PRIOR_ONLY


def _of_examples(target: Target, scores: Sequence[Score]) -> Score:
    """A client's score: the mean of its examples, or whether one of them was hit."""
    pooled = max if target.name in SHARES else fmean
    answered = [score.answered for score in scores if score.answered is not None]
    return Score(pooled([score.value for score in scores]), pooled(answered) if answered else None)


def _came_back(rows: Guessed, blind: Guessed) -> bool:
    """Whether a guess is exact, not certified, and the blind guess is not exact."""
    name = next(name for name in EXACT_METRIC.values() if name in rows)
    lucky = name in blind and is_exact(blind[name])
    return is_exact(rows[name]) and not rows[name].certified and not lucky


def _score(target: Target, rows: Guessed, blind: Guessed, *, guessable: bool) -> float | None:
    """The rescaled score of one guess; of the blind one where the attack refused the victim.

    An exact example counts if it is certified, or if the blind guess comes near to no victim so
    far, as in ``experiments.analysis.hits``. Else it keeps the strength open.
    """
    main = next(name for name in MAIN.values() if name in rows)
    if target.name == "verbatim":
        exact = next(rows[name] for name in EXACT_METRIC.values() if name in rows)
        return float(is_exact(exact) and (bool(exact.certified) or not guessable))
    if target.name == "recognisable":
        value = rows[main].value
        near = blind[main].value if main in blind else None
        passed = value is not None and value >= THRESHOLDS[main]
        return float(passed and (near is None or near < THRESHOLDS[main]))
    value = rows[target.name].value
    if value is None and rows[target.name].unscored and target.name in blind:
        value = blind[target.name].value
    return None if value is None else target.scaled(value)
