"""Attacks on the cells of one defense, a group of clients at a time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TypeAlias

from experiments.analysis.evidence import Kind
from experiments.analysis.hits import CLOSE, EXACT_METRIC
from experiments.analysis.power import Power, Search, counting_effect
from experiments.decision.plan import UNDEFENDED
from experiments.decision.search import Score
from experiments.decision.targets import SHARES, Target, unit_of, whole_range
from experiments.plan.cells import Cell
from experiments.plan.config import VerdictRule
from experiments.plan.entries import Entry, entries
from experiments.stages.attack import Attackers
from experiments.stages.coverage import THRESHOLDS, is_exact
from experiments.stages.score import Scorer
from experiments.stages.search_errors import search_errors
from fedsim.api.victims import Victims
from fedsim.capture import CaptureKey
from fedsim.records import LOST, MAIN, PRIOR_ONLY, AttackKey, ScoreRow, shown

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
        self._guessable |= self._guesses_by_chance(labels)
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
        if not self.can_guess:
            return "the blind guess is empty without rows of the attacker's own ([auxiliary])"
        lacking = (reason.kind for power in self._powers() for reason in power.lacking())
        return next((_LACKING[kind] for kind in lacking), "")

    def _powers(self) -> Iterator[Power]:
        """What is known of the attacks beside their scores, by each target."""
        keys = {entry.label: entry.key for entry in self._entries}
        searches = dict(self._searched())
        for target in self._measured:
            effect = counting_effect(unit_of(target.name), self.rule)
            yield Power(
                defense="",
                options=json.dumps(self.cells[0].config.defense),
                tried={keys[label]: 2 * sum(d) >= len(d) for label, d in self._ran.items()},
                working={key: "" for label, key in keys.items() if label in self.working},
                leads={keys[label]: lead for label, lead in self._leads(target).items()},
                searches=searches,
                smallest=effect / abs(target.high - target.low),
            )

    def _searched(self) -> Iterator[tuple[AttackKey, Search]]:
        """How far the attacks searched, of the last training in which they have an objective."""
        for cell in self.cells:
            for errors in search_errors(cell):
                excess = errors.excess or 0.0
                yield errors.attacker, Search(errors.missed, errors.errors, excess, errors.unit)

    def _leads(self, target: Target) -> dict[str, float]:
        """Of each attack its mean lead over the blind guess."""
        blind, leads = self.blind[target.name], {}
        for label, by_target in self._means.items():
            values = by_target.get(target.name, {})
            if both := values.keys() & blind.keys():
                leads[label] = fmean(values[client] - blind[client] for client in both)
        return leads

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

    def _guesses_by_chance(self, labels: Collection[str]) -> bool:
        """Whether a private example was guessed for a client who does not hold it."""
        return any(
            is_exact(row)
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


_LACKING: Mapping[Kind, str] = {
    "hardly_tested": "every attack refused most clients",
    "no_adaptive": "no attack that is adapted to the defense was run",
    "no_control": "no attack that is adapted to the defense is shown to work without one",
    "below_blind": "the attacks that are adapted to the defense return less than a blind guess",
    "search_errors": "a search ended too early: the private rows have the better objective",
}
"""What is missing for a word of holding, see ``experiments.analysis.power``."""


def _is_blind(entry: Entry) -> bool:
    return entry.key.attack == PRIOR_ONLY


def _of_examples(target: Target, scores: Sequence[Score]) -> Score:
    """A client's score: the mean of its examples, or whether one of them was hit."""
    pooled = max if target.name in SHARES else fmean
    answered = [score.answered for score in scores if score.answered is not None]
    return Score(pooled([score.value for score in scores]), pooled(answered) if answered else None)


def _came_back(rows: Guessed, blind: Guessed) -> bool:
    """Whether a guess is exact, not certified, and the blind guess is not near."""
    name = next(name for name in EXACT_METRIC.values() if name in rows)
    return is_exact(rows[name]) and not rows[name].certified and not _is_near(blind)


def _is_near(blind: Guessed) -> bool:
    """Whether the blind guess comes near the example, which is then guessable."""
    main = next((name for name in MAIN.values() if name in blind), None)
    value = blind[main].value if main else None
    return main is not None and value is not None and value >= CLOSE[main]


def _score(target: Target, rows: Guessed, blind: Guessed, *, guessable: bool) -> float | None:
    """The rescaled score of one guess; of the blind one where the attack refused the victim.

    An exact example counts if it is certified, or if the blind guess does not come near it and
    nobody's text was guessed for another client, as in ``experiments.analysis.hits``. Else it keeps
    the strength open.
    """
    main = next(name for name in MAIN.values() if name in rows)
    if target.name == "verbatim":
        exact = next(rows[name] for name in EXACT_METRIC.values() if name in rows)
        alone = not guessable and not _is_near(blind)
        return float(is_exact(exact) and (bool(exact.certified) or alone))
    if target.name == "recognisable":
        value = rows[main].value
        return float(value is not None and value >= THRESHOLDS[main] and not _is_near(blind))
    value = rows[target.name].value
    if value is None and rows[target.name].unscored and target.name in blind:
        value = blind[target.name].value
    return None if value is None else target.scaled(value)
