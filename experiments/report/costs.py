"""What a defense costs in utility, and what an undefended training achieves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import RoundUtility, TaskFindings, learned, settled
from experiments.report.numbers import useful
from experiments.report.tables import Number
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.defense_names import defense_name
from experiments.wording.names import show, title, utility_unit
from experiments.wording.prose import counted

MOST = 3
"""The costs of up to so many defenses of a setting are named at the top of the page."""


def costs(section: TaskFindings) -> list[tuple[str, list[Said]]]:
    """For each setting, how utility moves in training and what each tested defense does to it."""
    verdicts = section.evidence.verdicts
    by_setting = [
        (setting, list(_costs(section, [one for one in verdicts if one.setting == setting])))
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
