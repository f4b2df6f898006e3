"""Leaks at least a, at most b: what attacks reached beside what no attack can."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.information import CERTAIN, decibels, lead, most
from experiments.bounds.records import BudgetLimit, LimitsRecord
from experiments.bounds.success import least_noise, over_rounds
from experiments.plan.config import VerdictRule
from experiments.report.naming import attack_label
from experiments.report.tables import Number
from experiments.stages.coverage import EXACT_PSNR
from experiments.wording.names import show
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.records import MAIN, PRIOR_ONLY, AttackKey, Modality, SimulationRecord
from fedsim.store.files import read_record

_ERROR = "mse"
"""Images are bracketed by the PSNR of their mean squared error: bounds are on means of errors, and
the mean of PSNRs is above the PSNR of the mean."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """What is known of the leakage under one defense from both sides.

    Attributes:
        limit: the information that the bound follows from.
        attack: label of the attack, or blind guess, that surely leaks most; empty without one.
        reached: its mean, with its interval if it has one.
        least: mean that it surely reaches, or just its mean without an interval.
        blind: mean of the best blind guess that was made, from another client's update or none.
        most: mean that no attack exceeds; None if the bound says nothing.
        assumed: the same, were images Gaussian.
        exact: share of texts that any attack returns exactly, at most; None if nothing is known.
        holds: whether no attack can gain more than the smallest effect over a blind guess; not
            where an attack is above its bound.
    """

    limit: BudgetLimit
    attack: str
    reached: Number | None
    least: Number | None
    blind: Number | None
    most: Number | None
    assumed: Number | None
    exact: Number | None
    holds: bool

    @property
    def contradictory(self) -> bool:
        """Whether an attack is above what none can exceed, so that this is no bracket."""
        end = self.most or self.assumed
        return bool(self.least and end and self.least.value > end.value)

    @property
    def said(self) -> str:
        """From where to where, in words."""
        unit = next((n.unit for n in (self.least, self.most, self.assumed) if n), "1")
        after = "" if unit == "1" else f" {unit}"
        if self.contradictory:
            return (
                f"CONTRADICTION: {self.attack} reaches {self.least}{after}, and no attack should "
                f"exceed {self.most or self.assumed}{after}: an assumption or a number is wrong"
            )
        parts = [] if self.least is None else [f"at least {self.least}{after}"]
        if self.most is not None:
            parts.append(f"at most {self.most}{after}")
        elif self.assumed is not None:
            parts.append(f"at most {self.assumed}{after} were images Gaussian")
        else:
            parts.append("no bound on the mean" if self.exact else "no bound")
        if self.exact is not None:
            parts.append(f"exactly in at most {100 * self.exact.value:.0f} %")
        return ", ".join(parts)

    @property
    def why(self) -> str:
        """The information that the upper end follows from."""
        return f"{show(self.limit.nats)} nats: {self.limit.source}"


def budgets(
    run: Path, cells: Mapping[str, CellConfig], limits: LimitsRecord | None
) -> dict[str, BudgetLimit]:
    """Cell -> its budget: of ``fedsim limits`` if it was run, else what the options say alone."""
    listed = limits.budgets if limits else ()
    computed = {limit.cell: limit for limit in listed if limit.cell in cells}
    declared = {name: _declared(run, name, config) for name, config in cells.items()}
    return {name: limit for name, limit in declared.items() if limit is not None} | computed


def bounded_by(limits: Mapping[str, BudgetLimit]) -> Callable[[str, Modality, VerdictRule], bool]:
    """Whether the budget of a cell rules out the smallest effect of a rule."""
    return lambda cell, *asked: cell in limits and holds(limits[cell], *asked)


def _declared(run: Path, cell: str, config: CellConfig) -> BudgetLimit | None:
    path = run / cell / "simulation.json"
    chain = build_chain(config.defense, "defense")
    if all(defense.gaussian is None for defense in chain.defenses) or not path.exists():
        return None
    rows = read_record(path, SimulationRecord).client_rows
    noise = least_noise(config, rows)
    if noise is None or math.isinf(noise.clipped):
        return None
    return BudgetLimit(
        run=run.name,
        cell=cell,
        defense=chain.name,
        defense_options=chain.options_json,
        source="clipping and noise",
        nats=noise.clipped,
        all=over_rounds(config, rows, noise.clipped),
    )


def brackets(
    section: TaskFindings, limits: Mapping[str, BudgetLimit]
) -> dict[DefenseInSetting, Bracket]:
    """The bracket of each defense that was attacked and has a budget."""
    seeds: dict[DefenseInSetting, list[BudgetLimit | None]] = {}
    for cell, place in section.by_cell.items():
        seeds.setdefault(place, []).append(limits.get(cell))
    known = {
        place: max((limit for limit in each if limit), key=lambda limit: limit.nats)
        for place, each in seeds.items()
        if all(each)
    }
    return {
        place: bracket(
            limit,
            section.modality,
            section.rule,
            [result for result in section.results if result.place == place],
            partial(attack_label, section),
        )
        for place, limit in known.items()
    }


def bracket(
    limit: BudgetLimit,
    modality: Modality,
    rule: VerdictRule,
    results: Iterable[Result] = (),
    name: Callable[[AttackKey], str] = str,
) -> Bracket:
    """Both sides under one defense; the upper one alone where it was not attacked.

    Args:
        limit: the information in the replies.
        modality: decides the metric.
        rule: the smallest effect that counts.
        results: of the attacks on it, with their controls.
        name: of an attack.
    """
    text = modality == "text"
    metric = MAIN[modality] if text else _ERROR
    every = [(result, result.leakage[metric]) for result in results if metric in result.leakage]
    blinds = [
        leakage.mean if text else decibels(leakage.mean)
        for result, leakage in every
        if result.is_null and result.probe == "none"
    ]
    known = [(result, leakage) for result, leakage in every if not result.is_control]
    tried = any(attempt.attack != PRIOR_ONLY for attempt, _ in known)
    best, reached = max(
        known if tried else (), key=lambda pair: _surely(pair[1], text=text), default=(None, None)
    )
    guess = max(blinds, default=None)
    unit = "1" if text else "dB"
    both = Bracket(
        limit=limit,
        attack=name(best.attacker) if best else "",
        reached=_mean(reached, text=text) if reached else None,
        least=Number(_surely(reached, text=text), unit) if reached else None,
        blind=None if guess is None else Number(guess, unit),
        most=_most(limit, guess, text=text),
        assumed=_inside(limit.assumed, EXACT_PSNR),
        exact=_inside(limit.exact, CERTAIN, "1"),
        holds=holds(limit, modality, rule),
    )
    return replace(both, holds=both.holds and not both.contradictory)


def holds(limit: BudgetLimit, modality: Modality, rule: VerdictRule) -> bool:
    """Whether the replies of all rounds tell too little for the smallest effect, by any attack."""
    if modality == "text":
        return lead(limit.all) <= rule.rouge
    if limit.all_proved is None or limit.blind is None:
        return False
    return limit.all_proved - limit.blind <= rule.psnr


def _mean(reached: Leakage, *, text: bool) -> Number:
    if text:
        return Number(reached.mean, "1", reached.low, reached.high)
    if reached.low is None or reached.high is None:
        return Number(decibels(reached.mean), "dB")
    return Number(decibels(reached.mean), "dB", decibels(reached.high), decibels(reached.low))


def _surely(reached: Leakage, *, text: bool) -> float:
    if text:
        return reached.mean if reached.low is None else reached.low
    return decibels(reached.mean if reached.high is None else reached.high)


def _most(limit: BudgetLimit, blind: float | None, *, text: bool) -> Number | None:
    if not text:
        return _inside(limit.proved, EXACT_PSNR)
    return _inside(most(blind, limit.nats), CERTAIN, "1") if blind else None


def _inside(value: float | None, end: float, unit: str = "dB") -> Number | None:
    return Number(value, unit) if value is not None and value < end else None
