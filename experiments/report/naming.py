"""Names of the attacks, defenses, metrics and units of a section."""

from __future__ import annotations

from experiments.analysis.findings import HEADLINE, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting, Placed
from experiments.wording.catalogue import sentence
from experiments.wording.defense_names import NO_DEFENSE, defense_name
from experiments.wording.names import title, told_apart
from fedsim.records import AttackKey


def named_place(place: DefenseInSetting) -> tuple[str, str]:
    """Setting and defense."""
    return place.setting, defense_name(place.defense, place.defense_options)


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
