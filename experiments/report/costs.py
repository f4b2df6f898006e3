"""What a defense costs in utility, and what an undefended training achieves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import UTILITY, RoundUtility, TaskFindings, settled
from experiments.analysis.learning import learned
from experiments.report.numbers import useful
from experiments.report.tables import Number
from experiments.wording.defense_names import defense_name
from experiments.wording.names import show, title, utility_unit
from experiments.wording.prose import counted

MOST = 3
"""The costs of up to so many defenses of a setting are named at the top of the page."""


NOT_LEARNED = "without a defense the model is not surely better than before training"


def cost(section: TaskFindings, verdict: Verdict) -> str:
    """What the defense does to utility, in a sentence; empty where there is nothing to compare."""
    name = title(section.utility_name or "")
    _, change, epsilon = useful(section, verdict.place)
    spent = ""
    if epsilon:
        spent = f" It spends ε = {show(epsilon.value)}, as if each step drew its rows at random."
    if change is None:
        return spent.strip()
    if not math.isfinite(change.value):
        return f"The training diverged.{spent}"
    if not has_learned(section, verdict.setting):
        return f"What it costs in {name} cannot be told: {NOT_LEARNED}.{spent}"
    if change.low is None or change.high is None:
        said = f"The {name} changes by {_signed(change)} in one training."
    elif change.low <= 0 <= change.high:
        said = f"The {name} does not change measurably: {_signed(change)}."
    else:
        said = f"The {name} {'rises' if change.value > 0 else 'falls'}: {_signed(change)}."
    return said + spent


def brief_cost(section: TaskFindings, verdict: Verdict) -> str:
    """The same in a few words, to follow what a defense does; never a claim from one training."""
    name = section.utility_name
    change = useful(section, verdict.place)[1]
    if name is None or change is None or not math.isfinite(change.value):
        return ""
    if not has_learned(section, verdict.setting):
        return " at a cost that cannot be told"
    if change.low is None or change.high is None:
        return f" ({title(name)} {_signed(change)} in one training)"
    if change.low <= 0 <= change.high:
        return f" at no measurable cost in {title(name)}"
    size = show(abs(change.value), change.unit)
    lost = (change.value < 0) == (UTILITY[name] == "higher")
    return f" at a cost of {size} in {title(name)}" if lost else f" while {title(name)} improves"


def costs(section: TaskFindings) -> list[str]:
    """For each setting, how utility moves in training and what each tested defense does to it."""
    verdicts = section.evidence.verdicts
    sentences = []
    for setting in dict.fromkeys(verdict.setting for verdict in verdicts):
        here = [verdict for verdict in verdicts if verdict.setting == setting]
        bare = next((verdict for verdict in here if verdict.defense == "none"), None)
        tested = [verdict for verdict in here if verdict.defense != "none" and verdict.victims]
        moves = _moves(section, bare, tested)
        if moves and not has_learned(section, setting):
            moves = [f"no cost can be told: {NOT_LEARNED}"]
        clauses = [_training(section, bare) if bare else "", *moves]
        said = "; ".join(filter(None, clauses))
        if said:
            sentences.append(f"{setting}: {said}" if setting else said)
    return sentences


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


def _training(section: TaskFindings, bare: Verdict) -> str:
    """Where utility starts and ends without a defense; empty unless it was measured at first."""
    name = section.utility_name
    measured = {point.round: point.values for point in section.utility if point.place == bare.place}
    end = useful(section, bare.place)[0]
    if name is None or end is None or name not in measured.get(0, {}):
        return ""
    start = show(measured[0][name], utility_unit(name))
    rounds = max(measured)
    over = f"over {counted(rounds, 'round')} without a defense"
    if not math.isfinite(end.value):
        return f"the training diverges {over}"
    return _from_to(
        title(name), start, show(end.value, end.unit), end.value > measured[0][name]
    ) + (f" {over}")


def _moves(section: TaskFindings, bare: Verdict | None, tested: Sequence[Verdict]) -> list[str]:
    said = [clause for clause in (_move(section, bare, verdict) for verdict in tested) if clause]
    more = len(said) - MOST
    return [*said[:MOST], f"{more} more below"] if more > 0 else said


def _move(section: TaskFindings, bare: Verdict | None, verdict: Verdict) -> str:
    name = section.utility_name
    end, change, _ = useful(section, verdict.place)
    base = useful(section, bare.place)[0] if bare else None
    if name is None or end is None or base is None or change is None:
        return ""
    who = defense_name(verdict.defense, verdict.defense_options)
    if not math.isfinite(change.value):
        return f"under {who} the training diverges"
    before, after = show(base.value, base.unit), show(end.value, end.unit)
    single = change.low is None or change.high is None
    if before == after:
        return f"{who} leaves {title(name)} at {after}{' in one training' if single else ''}"
    verb = "raises" if change.value > 0 else "lowers"
    moved = f"{verb} {title(name)} from {before} to {after}"
    if change.low is None or change.high is None:
        return f"{who} {moved} in one training"
    sure = "" if not change.low <= 0 <= change.high else ", which may be chance"
    return f"{who} {moved}{sure}"


def _from_to(name: str, start: str, end: str, rises: bool) -> str:
    if start == end:
        return f"{name} stays at {end}"
    return f"{name} {'rises' if rises else 'falls'} from {start} to {end}"


def _signed(change: Number) -> str:
    return f"{'+' if change.value > 0 else ''}{change}"
