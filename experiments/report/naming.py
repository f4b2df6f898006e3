"""Names and units of a section, and the numbers behind its verdicts with their intervals."""

from experiments.analysis.evidence import Reached, Verdict
from experiments.analysis.findings import HEADLINE, Result, Spread, TaskFindings
from experiments.analysis.keys import DefenseInSetting, Placed
from experiments.analysis.statistics import Difference, Estimate
from experiments.analysis.verdicts import LABELS
from experiments.report.tables import Number
from experiments.wording.catalogue import sentence
from experiments.wording.epsilons import Epsilons
from experiments.wording.names import (
    NO_DEFENSE,
    defense_name,
    spoken,
    title,
    told_apart,
    utility_unit,
)
from fedsim.records import AttackKey


def named_place(place: DefenseInSetting) -> tuple[str, str]:
    """Setting and defense."""
    return place.setting, defense_name(place.defense, place.defense_options)


def spoken_place(place: DefenseInSetting) -> str:
    """``gaussian noise (std=0.001) at batch 4``."""
    setting, defense = named_place(place)
    return f"{spoken(defense)}{f' at {setting}' if setting else ''}"


def placed(place: DefenseInSetting) -> dict[str, str]:
    """The same as columns of a table."""
    return dict(zip(("setting", "defense"), named_place(place), strict=True))


def place_of(section: TaskFindings) -> str:
    """Data set, model and protocol, with which captions end."""
    return f"{section.dataset}, {section.model}, {title(section.protocol)}"


def attack_name(section: TaskFindings, result: Result) -> str:
    """The label of the attack and, for a control, what it was given instead of the update."""
    name = attack_label(section, result.attacker)
    return name if result.control == "none" else f"{name}, {title(result.control)}"


def attack_label(section: TaskFindings, attacker: AttackKey | None) -> str:
    """The attack and the options that tell it from its namesakes in the section; "" for None."""
    if attacker is None:
        return ""
    return told_apart(attacker, (result.attacker for result in section.results))


def shown_metrics(section: TaskFindings) -> tuple[str, ...]:
    """The headline metrics for which at least one attack has a value."""
    scored = {metric for result in section.results for metric in result.leakage}
    return tuple(metric for metric in HEADLINE[section.modality] if metric in scored)


def bare_name(section: TaskFindings) -> str:
    """The name of the defense "none"."""
    return sentence("defense.as_it_ran") if section.foreign else NO_DEFENSE


def name_of(section: TaskFindings, place: DefenseInSetting | Placed) -> str:
    """Display name of a defense, or that there is none."""
    if place.defense == "none":
        return bare_name(section)
    return defense_name(place.defense, place.defense_options)


def unit_of(section: TaskFindings, metric: str) -> str:
    """Unit of a metric for which at least one attack has a value."""
    return next(r.leakage[metric].unit for r in section.results if metric in r.leakage)


def unit_of_main(section: TaskFindings) -> str:
    """Unit of the metric that the verdicts rest on."""
    return "dB" if section.modality == "image" else "1"


def things(section: TaskFindings) -> str:
    """What the private examples are."""
    if any("exact_columns" in result.leakage for result in section.results):
        return "rows"
    return "texts" if section.modality == "text" else "examples" if section.foreign else "images"


def useful(
    section: TaskFindings, place: DefenseInSetting
) -> tuple[Number | None, Number | None, Epsilons | None]:
    """Utility at the end of training, its change from no defense in the setting, and epsilon."""
    name, end = section.utility_name, section.at_end(place)
    if name is None or end is None or name not in end.values:
        return None, None, None
    bases = {row.setting: row.place for row in section.utility if row.defense == "none"}
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
