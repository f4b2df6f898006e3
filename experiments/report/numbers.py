"""The numbers behind a verdict, with their intervals, in the units of its section."""

from __future__ import annotations

from experiments.analysis.evidence import Reached, Verdict
from experiments.analysis.findings import Spread, TaskFindings
from experiments.analysis.keys import DefenseInSetting, undefended
from experiments.analysis.statistics import Difference, Estimate
from experiments.analysis.verdicts import LABELS
from experiments.report.naming import attack_label, unit_of_main
from experiments.report.tables import Number
from experiments.wording.epsilons import Epsilons
from experiments.wording.names import utility_unit


def useful(
    section: TaskFindings, place: DefenseInSetting
) -> tuple[Number | None, Number | None, Epsilons | None]:
    """Utility at the end of training, its change from no defense in the setting, and epsilon."""
    name, end = section.utility_name, section.at_end(place)
    if name is None or end is None or name not in end.values:
        return None, None, None
    bases = undefended(row.place for row in section.utility)
    base = section.at_end(bases[place.setting]) if place.setting in bases else None
    compared = base is not None and place.defense != "none"
    change = _utility(end.over_seeds(name, base), name) if compared else None
    return _utility(end.over_seeds(name), name), change, end.spent


def _utility(spread: Spread | None, name: str) -> Number | None:
    return Number(spread[0], utility_unit(name), *spread[1:]) if spread else None


def reached(section: TaskFindings, best: Reached | None) -> tuple[str, Number | None]:
    """Label of an attack, and the mean that it reached over all victims."""
    if best is None:
        return "", None
    return attack_label(section, best.attacker), number(section, best.leakage)


def label_accuracy(section: TaskFindings, verdict: Verdict) -> Number | None:
    """Label accuracy of the attack that infers labels best."""
    result = section.result(verdict.place, verdict.labels) if verdict.labels else None
    accuracy = result.leakage[LABELS] if result else None
    return Number(accuracy.mean, accuracy.unit, accuracy.low, accuracy.high) if accuracy else None


def null_of(section: TaskFindings, verdict: Verdict, kind: str) -> Number | None:
    """Mean of a null baseline of the strongest attack; None if it was not run."""
    mean = verdict.nulls.get(kind)
    return None if mean is None else Number(mean, unit_of_main(section))


def number(section: TaskFindings, mean: Estimate | Difference | None) -> Number | None:
    """A mean with its interval, in the unit of the main metric."""
    return Number(mean.mean, unit_of_main(section), mean.low, mean.high) if mean else None
