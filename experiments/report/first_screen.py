"""The first screen of a page beside its answer: the worst victim, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.hits import EXACT_MAIN
from experiments.analysis.keys import DefenseInSetting
from experiments.report.brackets import Bracket
from experiments.report.gallery import attack_of
from experiments.report.naming import bare, unit_of_main
from experiments.report.reasons import variant
from experiments.report.statements import names
from experiments.report.tables import Number
from experiments.stages.gallery import Shown
from experiments.wording.catalogue import Said, say, sentence, sentences
from experiments.wording.defense_names import defense_name
from experiments.wording.names import title
from experiments.wording.prose import capital, listed

_SINGLES = ("beyond", "recovered", "exact")
_OPEN = ("no leak found", "not decided", "not attacked")
_BOUNDS = 3
"""Defenses whose bounds the first screen names; the table has all of them."""


def worst(section: TaskFindings, examples: Sequence[Shown]) -> Said | None:
    """The example that came back best, and the best under the defense that leaks least.

    A guess that comes no nearer than one that never saw the update has no victim.
    """
    by_place: dict[DefenseInSetting, Shown] = {}
    for example in examples:
        place = section.by_cell.get(example.cell)
        if place is None or (example.blind and not example.certified) or example.value is None:
            continue
        before = by_place.get(place)
        if before is None or _value(example) > _value(before):
            by_place[place] = example
    if not by_place:
        return say("victim.none") if any(example.blind for example in examples) else None
    most = max(by_place, key=lambda place: _value(by_place[place]))
    victim = capital(_victim(section, most, by_place[most]))
    defended = [place for place in by_place if place.defense != "none"]
    least = min(defended, key=lambda place: _value(by_place[place]), default=most)
    if least == most:
        return say("victim.worst", victim=victim)
    return say("victim.both", victim=victim, least=_victim(section, least, by_place[least]))


def _value(example: Shown) -> float:
    return -math.inf if example.value is None else example.value


def _victim(section: TaskFindings, place: DefenseInSetting, example: Shown) -> str:
    name = defense_name(place.defense, place.defense_options)
    unit = unit_of_main(section)
    exact = _value(example) >= EXACT_MAIN[section.main]
    proof = sentence("victim.certified" if exact else "victim.false") if example.certified else ""
    return sentence(
        "victim.one",
        where=bare(section) if place.defense == "none" else f"under {name}",
        client=example.client,
        round=example.round,
        value=f"{'' if unit != '1' else f'{title(section.main)} '}"
        + Number(_value(example), unit).said,
        attack=attack_of(section, example.attack, example.attack_options),
        proof=proof,
    )


def changes(section: TaskFindings, brackets: Mapping[DefenseInSetting, Bracket]) -> Iterator[Said]:
    """What would decide what is open, and how far a stronger attack could get at most."""
    open_ = [verdict for verdict in section.evidence.verdicts if verdict.rows in _OPEN]
    known = {id(v): {f"decide.{variant(reason)}" for reason in v.reasons} for v in open_}
    for reason in (reason for reason in sentences() if reason.startswith("decide.")):
        if those := [verdict for verdict in open_ if reason in known[id(verdict)]]:
            yield say(reason, where=_where(section, those), attack=_attack(those))
    if few := [verdict for verdict in open_ if _clients(verdict)]:
        most = max(map(_clients, few))
        yield say("change.clients", most=most, where=_where(section, few), now=_range(few))
    alone = [v for v in open_ if v not in few and any(r.kind in _SINGLES for r in v.reasons)]
    if alone:
        yield say("change.singles", where=_where(section, alone))
    untried = [verdict for verdict in open_ if verdict.word == "not attacked"]
    if untried and not brackets:
        yield say("change.untried", where=_where(section, untried))
    for verdict in [verdict for verdict in open_ if verdict.place in brackets][:_BOUNDS]:
        both = brackets[verdict.place]
        if both.least is not None and (both.most or both.assumed or both.exact):
            reason = "change.contradiction" if both.contradictory else "change.bound"
            yield say(reason, where=_where(section, [verdict]), bracket=both.said)


def _attack(verdicts: Iterable[Verdict]) -> str:
    """The strongest attack of the first that has one, as experiments name it."""
    strongest = [verdict.strongest for verdict in verdicts if verdict.strongest is not None]
    return strongest[0].attacker.attack if strongest else "inverting"


def _clients(verdict: Verdict) -> int:
    """How many clients would decide; 0 where their number is not what is missing."""
    known = [reason.numbers.get("needed", 0.0) for reason in verdict.reasons]
    return round(max((count for count in known if math.isfinite(count)), default=0.0))


def _where(section: TaskFindings, verdicts: Collection[Verdict]) -> str:
    """``without a defense and under sign``."""
    undefended = [bare(section)] if any(v.defense == "none" for v in verdicts) else []
    defended = dict.fromkeys(
        defense_name(v.defense, v.defense_options) for v in verdicts if v.defense != "none"
    )
    return listed([*undefended, *([f"under {names(list(defended))}"] if defended else [])])


def _range(verdicts: Collection[Verdict]) -> str:
    counts = sorted({verdict.clients for verdict in verdicts})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
