"""The first screen beside its answer: worst victim, what would change it, what defenses cost."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from attacks import attack_classes
from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import RoundUtility, TaskFindings, learned, settled
from experiments.analysis.hits import EXACT_MAIN
from experiments.analysis.keys import DefenseInSetting
from experiments.plan.entries import allows_for
from experiments.report.brackets import Bracket
from experiments.report.details import variant
from experiments.report.gallery import attack_of
from experiments.report.naming import unit_of_main, useful
from experiments.report.statements import where
from experiments.report.tables import Number
from experiments.stages.gallery import Shown
from experiments.wording.catalogue import Said, say, sentence, sentences
from experiments.wording.names import defense_name, show, title, utility_unit
from experiments.wording.prose import capital, counted
from fedsim.records import AttackKey

_SINGLES = ("beyond", "recovered", "exact")
_OPEN = ("no leak found", "not decided", "not attacked")
_BOUNDS = 3
"""Defenses whose bounds the first screen names; the table has all of them."""


def worst(section: TaskFindings, examples: Sequence[Shown]) -> Said | None:
    """The example that came back best, and the best under the defense that leaks least.

    A guess that comes no nearer than one that never saw the update has no victim.
    """
    best: dict[DefenseInSetting, tuple[float, Shown]] = {}
    for example in examples:
        place, value = section.by_cell.get(example.cell), example.value
        if place is None or value is None or (example.blind and not example.certified):
            continue
        if place not in best or value > best[place][0]:
            best[place] = value, example
    if not best:
        return say("victim.none") if any(example.blind for example in examples) else None
    most = max(best, key=lambda place: best[place][0])
    victim = capital(_victim(section, most, *best[most]))
    defended = [place for place in best if place.defense != "none"]
    least = min(defended, key=lambda place: best[place][0], default=most)
    if least == most:
        return say("victim.worst", victim=victim)
    return say("victim.both", victim=victim, least=_victim(section, least, *best[least]))


def _victim(section: TaskFindings, place: DefenseInSetting, value: float, example: Shown) -> str:
    unit, exact = unit_of_main(section), value >= EXACT_MAIN[section.main]
    proof = sentence("victim.certified" if exact else "victim.false") if example.certified else ""
    return sentence(
        "victim.one",
        where=where(section, [place]),
        client=example.client,
        round=example.round,
        value=f"{'' if unit != '1' else f'{title(section.main)} '}{Number(value, unit).said}",
        attack=attack_of(section, example.attack, example.attack_options),
        proof=proof,
    )


def changes(section: TaskFindings, brackets: Mapping[DefenseInSetting, Bracket]) -> Iterator[Said]:
    """What would decide what is open, and how far a stronger attack could get at most."""
    open_ = [verdict for verdict in section.evidence.verdicts if verdict.rows in _OPEN]
    known = {id(v): {f"decide.{variant(reason)}" for reason in v.reasons} for v in open_}
    for reason in (reason for reason in sentences() if reason.startswith("decide.")):
        if those := [verdict for verdict in open_ if reason in known[id(verdict)]]:
            yield say(reason, where=where(section, those), attack=_attack(section, those))
    if few := [verdict for verdict in open_ if _clients(verdict)]:
        most = max(map(_clients, few))
        yield say("change.clients", most=most, where=where(section, few), now=_range(few))
    alone = [v for v in open_ if v not in few and any(r.kind in _SINGLES for r in v.reasons)]
    if alone:
        yield say("change.singles", where=where(section, alone))
    untried = [verdict for verdict in open_ if verdict.word == "not attacked"]
    if untried and not brackets:
        yield say("change.untried", where=where(section, untried))
    for verdict in [verdict for verdict in open_ if verdict.place in brackets][:_BOUNDS]:
        both = brackets[verdict.place]
        if both.least is not None and (both.most or both.assumed or both.exact):
            reason = "change.contradiction" if both.contradictory else "change.bound"
            yield say(reason, where=where(section, [verdict]), bracket=both.said)


def _attack(section: TaskFindings, verdicts: Collection[Verdict]) -> str:
    """An attack that models these defenses where it is adaptive, one that was run if there is."""
    known = [*(result.attack for result in section.results), *attack_classes()]
    strongest = [v.strongest.attacker.attack for v in verdicts if v.strongest is not None]
    for name in (*strongest, *known):
        cls = attack_classes().get(name)
        if cls is not None and section.modality in cls.modalities and hasattr(cls, "adaptive"):
            key = AttackKey(name, "{}", adaptive=True)
            if all(allows_for(key, verdict.defense_options) for verdict in verdicts):
                return name
    return next(iter(strongest), "inverting")


def _clients(verdict: Verdict) -> int:
    """How many clients would decide; 0 where their number is not what is missing."""
    known = [reason.numbers.get("needed", 0.0) for reason in verdict.reasons]
    return round(max((count for count in known if math.isfinite(count)), default=0.0))


def _range(verdicts: Collection[Verdict]) -> str:
    counts = sorted({verdict.clients for verdict in verdicts})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


MOST = 3
"""The costs of up to so many defenses of a setting are named at the top of the page."""


def costs(section: TaskFindings) -> list[tuple[str, list[Said]]]:
    """For each setting, how utility moves in training and what each tested defense does to it."""
    verdicts = section.evidence.verdicts
    by_setting = [
        (setting, list(_costs(section, [v for v in verdicts if v.setting == setting])))
        for setting in dict.fromkeys(verdict.setting for verdict in verdicts)
    ]
    return [(setting, said) for setting, said in by_setting if said]


def _costs(section: TaskFindings, here: Sequence[Verdict]) -> Iterator[Said]:
    base = next((verdict for verdict in here if verdict.defense == "none"), None)
    if base is not None:
        yield from _training(section, base)
    tested = [verdict for verdict in here if verdict.defense != "none" and verdict.victims]
    moves = [move for verdict in tested for move in _move(section, verdict)]
    if moves and not has_learned(section, here[0].setting):
        yield say("cost.unlearned")
        return
    yield from moves[:MOST]
    if len(moves) > MOST:
        yield say("cost.more", more=len(moves) - MOST)


def has_learned(section: TaskFindings, setting: str) -> bool:
    """Whether training without a defense made the model of a setting better, if it was measured."""
    name = section.utility_name
    bare = [point for point in section.utility if point.place.defense == "none"]
    here = [point for point in bare if point.setting == setting]
    start = next((point for point in here if point.round == 0), None)
    end = settled(here)
    if name is None or start is None or end is None or end.round == 0:
        return True
    seeds = sorted(start.by_seed.get(name, {}).keys() & end.by_seed.get(name, {}).keys())
    sides = ([_of_seed(point, seed) for seed in seeds] for point in (end, start))
    return not seeds or learned(name, *sides)


def _of_seed(point: RoundUtility, seed: int) -> dict[str, float]:
    return {name: values[seed] for name, values in point.by_seed.items() if seed in values}


def _training(section: TaskFindings, base: Verdict) -> Iterator[Said]:
    """Where utility starts and ends without a defense, where it was measured at first."""
    name = section.utility_name
    measured = {point.round: point.values for point in section.utility if point.place == base.place}
    end = useful(section, base.place)[0]
    if name is None or end is None or name not in measured.get(0, {}):
        return
    rounds = counted(max(measured), "round")
    start = show(measured[0][name], utility_unit(name))
    if not math.isfinite(end.value):
        yield say("cost.diverged", rounds=rounds)
    else:
        facts = {"measure": title(name), "start": start, "end": show(end.value, end.unit)}
        yield say("cost.training", rounds=rounds, **facts)


def _move(section: TaskFindings, verdict: Verdict) -> Iterator[Said]:
    end, change, _ = useful(section, verdict.place)
    if end is None or change is None:
        return
    who = defense_name(verdict.defense, verdict.defense_options)
    if not math.isfinite(change.value):
        yield say("cost.lost", who=who)
    else:
        facts = {"end": show(end.value, end.unit), "change": signed(change)}
        yield say("cost.move", who=who, sure=_sure(change), **facts)


def _sure(change: Number) -> str:
    if change.low is None or change.high is None:
        return sentence("cost.single")
    return sentence("cost.chance") if change.low <= 0 <= change.high else ""


def signed(change: Number) -> str:
    """A change with its sign."""
    return f"{'+' if change.value > 0 else ''}{change}"
