"""The first screen of a page beside its answer: the worst victim, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.hits import EXACT_MAIN
from experiments.analysis.keys import DefenseInSetting
from experiments.report.answers import names
from experiments.report.brackets import Bracket
from experiments.report.gallery import attack_of
from experiments.report.naming import bare, unit_of_main
from experiments.stages.gallery import Shown
from experiments.wording.catalogue import sentence, texts
from experiments.wording.defense_names import defense_name, spoken
from experiments.wording.names import show, title
from experiments.wording.prose import capital

_OPEN = ("no leak found", "not decided", "not attacked")


def worst(section: TaskFindings, examples: Sequence[Shown]) -> str:
    """The example that came back best, and the best under the defense that leaks least.

    A guess that comes no nearer than one that never saw the update has no victim.
    """
    by_place: dict[DefenseInSetting, Shown] = {}
    for example in examples:
        if example.blind and not example.certified:
            continue
        place = section.by_cell.get(example.cell)
        if place is None or example.value is None:
            continue
        before = by_place.get(place)
        if before is None or before.value is None or example.value > before.value:
            by_place[place] = example
    if not by_place:
        return sentence("victim.none") if any(example.blind for example in examples) else ""
    most = max(by_place, key=lambda place: _value(by_place[place]))
    said = _said(section, most, by_place[most])
    defended = [place for place in by_place if place.defense != "none"]
    least = min(defended, key=lambda place: _value(by_place[place]), default=most)
    if least != most:
        said += f"; where least came back, {_said(section, least, by_place[least])}"
    return capital(said)


def _value(example: Shown) -> float:
    return -math.inf if example.value is None else example.value


def _said(section: TaskFindings, place: DefenseInSetting, example: Shown) -> str:
    unit = unit_of_main(section)
    after = f" {unit}" if unit != "1" else ""
    where = bare(section)
    if place.defense != "none":
        where = f"under {defense_name(place.defense, place.defense_options)}"
    metric = "" if unit != "1" else f"{title(section.main)} "
    exact = _value(example) >= EXACT_MAIN[section.main]
    proof = (", certified" if exact else ", FALSELY CERTIFIED") if example.certified else ""
    value = f"{metric}{show(example.value, unit)}{after}"
    return (
        f"{where}, client {example.client} in round {example.round}: {value} "
        f"by {attack_of(section, example.attack, example.attack_options)}{proof}"
    )


def changes(section: TaskFindings, brackets: Mapping[DefenseInSetting, Bracket]) -> Iterator[str]:
    """What would decide what is open, and how far a stronger attack could get at most."""
    open_ = [verdict for verdict in section.evidence.verdicts if verdict.rows in _OPEN]
    for kind, advice in texts("decide").items():
        who = [
            verdict for verdict in open_ if any(reason.kind == kind for reason in verdict.reasons)
        ]
        if who:
            yield advice.format(who=_names(who), attack=_attack(who))
    needed = {id(verdict): _clients(verdict) for verdict in open_}
    few = [verdict for verdict in open_ if needed[id(verdict)]]
    if few:
        most = max(needed[id(verdict)] for verdict in few)
        yield f"about {most:,} clients under {_names(few)}, instead of {_range(few)}"
    if (
        untried := [verdict for verdict in open_ if verdict.word == "not attacked"]
    ) and not brackets:
        yield f"an attack that can run under {_names(untried)}"
    known = [(brackets[verdict.place], verdict) for verdict in open_ if verdict.place in brackets]
    for both, verdict in known[:3]:
        if both.least is not None and (both.most or both.assumed or both.exact):
            what = "the cause of this" if both.contradictory else "a stronger attack"
            yield f"{what} on {_names([verdict])}: {both.said}"


def _attack(verdicts: Iterable[Verdict]) -> str:
    """The strongest attack of the first that has one, as experiments name it."""
    strongest = [verdict.strongest for verdict in verdicts if verdict.strongest is not None]
    return strongest[0].attacker.attack if strongest else "inverting"


def _clients(verdict: Verdict) -> int:
    """How many clients would decide; 0 where their number is not what is missing."""
    known = [reason.numbers.get("needed", 0.0) for reason in verdict.reasons]
    return round(max((count for count in known if math.isfinite(count)), default=0.0))


def _names(verdicts: Iterable[Verdict]) -> str:
    distinct = dict.fromkeys(
        spoken(defense_name(verdict.defense, verdict.defense_options)) for verdict in verdicts
    )
    return names(list(distinct))


def _range(verdicts: Collection[Verdict]) -> str:
    counts = sorted({verdict.clients for verdict in verdicts})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
