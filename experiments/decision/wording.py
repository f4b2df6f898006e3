"""The answer of a calibration in sentences and as a table."""

from collections.abc import Iterator

from experiments.analysis.held import CAP, SHARES, Target
from experiments.decision.answer import Answer, Cost, FamilyAnswer, ReachedTarget, Tried
from experiments.decision.targets import parse_targets, unit_of
from experiments.report.tables import Number, Table, Value, to_terminal
from experiments.wording.catalogue import sentence
from experiments.wording.names import compact, show, title


def targets_of(answer: Answer) -> tuple[Target, ...]:
    """What was to be held; nothing where the strongest affordable strength was asked for."""
    hold = answer.question.hold
    return parse_targets(hold, answer.question.share) if hold else ()


def measured(target: str, value: float | None) -> str:
    """A value of a target with its unit."""
    unit = unit_of(target)
    shown = show(value, unit)
    return shown if unit == "1" else f"{shown} {unit}"


def goal(target: Target) -> str:
    """What a target asks for, such as ``mean PSNR below 18 dB``."""
    if target.name in SHARES:
        example = "came back exactly" if target.name == "verbatim" else "is recognisable"
        if not target.value:
            of = _percent(target.share)
            return f"no client of whom an example {example}, surely fewer than {of} of all"
        return f"fewer than {_percent(target.value)} of clients of whom an example {example}"
    side = "below" if target.high > target.low else "above"
    limit = measured(target.name, target.value)
    capped = f", each cut at {measured(target.name, target.high)}," if target.high == CAP else ""
    return f"mean {title(target.name)}{capped} {side} {limit}"


def headline(answer: Answer) -> str:
    """The answer in a sentence."""
    if answer.undefended.word != "leaks":
        return sentence("calibrated.undecided", state=state(answer.undefended))
    outcomes = {family.outcome for family in answer.families}
    if answer.chosen is not None:
        family = answer.families[answer.chosen]
        assert family.at is not None
        facts = {"name": family.at.name, "end": _end(family), "price": _price(family)}
        said = sentence("calibrated.holds", **facts)
    elif "costs too much" in outcomes:
        said = sentence("calibrated.dear")
    else:
        said = sentence("calibrated.leaks" if outcomes == {"leaks"} else "calibrated.open")
    training = "of one training" if len(answer.seeds) == 1 else ""
    first = "in round 1" if answer.rounds.startswith("round 1 of") else ""
    once = ", ".join(filter(None, (training, first)))
    return f"{said} ({once})" if once else said


def _end(family: FamilyAnswer) -> str:
    """That the answer is the strongest strength of the range, where nothing stronger was there."""
    last = len(family.values) > 1 and family.chosen == len(family.values) - 1
    return ", the strongest of its range" if last else ""


def outcome(family: FamilyAnswer) -> str:
    """What became of a family, in a sentence."""
    tried, values = family.tried, family.values
    at = family.at
    if at is None:
        last = tried[-1]
        return f"{family.title}: none is shown to hold; {last.name} {state(last)}"
    if family.outcome == "costs too much":
        lost = _lost(family) or "as its training diverged, or is of no use without a defense either"
        return f"{at.name} holds, and loses too much: {lost}{''.join(map(_sureness, family.costs))}"
    shown = _shown(at, family.epsilon)
    if family.chosen == 0 and len(values) > 1:
        return f"everything in the range holds, from {at.name} on{shown}; a weaker one may do"
    said = f"{at.name} holds{_end(family)}{shown}"
    gaps = " and ".join(f"{gap.name} {state(gap)}" for gap in family.gaps)
    return f"{said}. NOT MONOTONE: {gaps}, though it is stronger" if gaps else said


def _shown(tried: Tried, epsilon: str) -> str:
    """Clients hit and their bound, means beside a guess that sees no update, and its epsilon."""
    clauses = [
        f"{round(reached.mean * reached.clients)} of {reached.clients} {reached.target}: at most "
        f"{_percent(reached.high)}"
        for reached in tried.reached
        if reached.target in SHARES
    ]
    clauses += [epsilon] if epsilon else []
    clauses += [
        f"{reached.target} {measured(reached.target, reached.mean)} by {reached.attack}, "
        f"{measured(reached.target, reached.blind)} by a blind guess"
        for reached in tried.reached
        if reached.blind is not None
    ]
    return f" ({'; '.join(clauses)})" if clauses else ""


def bracket(family: FamilyAnswer) -> str:
    """What leaks, what was tried and stays open, and what holds: ``0.01 leaks, 0.04 holds``."""
    if not family.tried:
        return "not tried"
    if family.option is None:
        return family.tried[0].word
    leaks = f"{_value(family, family.leaking)} leaks" if family.leaking >= 0 else ""
    parts = [leaks or "none is shown to leak"]
    upto = len(family.values) if family.chosen is None else family.chosen
    undecided = sorted(trial.index for trial in family.tried if family.leaking < trial.index < upto)
    if undecided:
        parts.append(f"{' and '.join(_value(family, index) for index in undecided)} open")
    if family.chosen is not None:
        parts.append(f"{_value(family, family.chosen)} holds{_end(family)}")
    return ", ".join(parts)


def state(tried: Tried) -> str:
    """The word on one strength with its bound: ``leaks: rouge1 at least .4 by span``."""
    reached = next(target for target in tried.reached if target.target == tried.target)
    if tried.word == "leaks":
        least = _within(reached, reached.low, beyond=True)
        return f"leaks: {tried.target} surely {least}, by {reached.attack}"
    if tried.word == "holds":
        return f"holds: {tried.target} surely {_within(reached, reached.high)}"
    ends = sorted((reached.low, reached.high))
    shown = " and ".join(measured(tried.target, end) for end in ends)
    why = f"; {tried.reason}" if tried.reason else ""
    return f"is open: {tried.target} between {shown}{why}"


def table(answer: Answer) -> Table:
    """One line for each family, after that of no defense."""
    bare = answer.undefended
    first: dict[str, Value] = {
        "defense": bare.name,
        "weakest that holds": "",
        "bracket": bare.word,
        "leakage, surely at most": "",
        "utility lost": "",
        "clients": bare.clients,
        "jobs": bare.jobs,
    }
    rows = [first, *map(_row, answer.families)]
    holds = "; ".join(goal(target) for target in targets_of(answer))
    caption = (
        f"The weakest strength of each defense that holds: {holds}. Of all words holds and of all "
        f"words leaks, any is wrong with at most {_percent(answer.question.error)}."
    )
    return Table("calibration", caption, tuple(rows))


def notes(answer: Answer) -> Iterator[str]:
    """What a reader has to know beside the table."""
    if answer.undefended.word == "leaks":
        yield from (f"{outcome(family)}." for family in answer.families)
    if any(not cost.is_measurable for family in answer.families for cost in family.costs):
        yield sentence("calibrated.unlearned")
    yield sentence("calibrated.by", rounds=answer.rounds, attacks=", ".join(answer.attacks))
    for reached, target in zip(answer.undefended.reached, targets_of(answer), strict=True):
        if reached.blind is not None and target.scaled(reached.blind) >= target.passes:
            blind = f"{measured(target.name, reached.blind)} of {target.name}"
            yield sentence("calibrated.blind", blind=blind, target=target.text())
    yield sentence("calibrated.jobs", jobs=answer.jobs, grid=answer.grid)
    if not any(target.startswith("label_accuracy=") for target in answer.question.hold):
        yield sentence("calibrated.labels")
    yield sentence("calibrated.granted")
    yield sentence("calibrated.public", rows=answer.rows)


def text(answer: Answer, files: str) -> str:
    """For a terminal."""
    if not answer.question.hold:
        return "\n".join([*affordable(answer), files])
    said = [f"- {note}" for note in notes(answer)]
    return "\n".join([to_terminal(table(answer)), f"{headline(answer)}.", *said, files])


def affordable(answer: Answer) -> Iterator[str]:
    """The strongest strength of each family that costs no more than was asked, a line each."""
    limits = " and ".join(f"{100 * v:g} % of {k}" for k, v in answer.question.lose.items())
    yield f"The strongest that loses at most {limits}, mean of {len(answer.seeds)} seeds:"
    for family in answer.families:
        at, end = family.at or family.tried[0], family.end
        lost = ", ".join(map(share_lost, at.costs)) or "what cannot be told: its training diverged"
        if family.at is None:
            yield f"- {family.title}: {end}: {at.name} loses {lost}"
        else:
            name = _value(family, at.index) if family.option else "as it is"
            more = f", {end}" if end and family.option else ""
            yield f"- {family.title}: {name}{more}; loses {lost}"


def leakage(tried: Tried) -> str:
    """The upper bound by each target."""
    return ", ".join(
        f"{reached.target} {_within(reached, reached.high)}" for reached in tried.reached
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _row(family: FamilyAnswer) -> dict[str, Value]:
    at = family.at
    clients = at.clients if at else max((trial.clients for trial in family.tried), default=0)
    return {
        "defense": family.title,
        "weakest that holds": "none"
        if at is None
        else _value(family, at.index)
        if family.option
        else "as it is",
        "bracket": bracket(family),
        "leakage, surely at most": leakage(at) if at else "",
        "utility lost": _lost(family),
        "clients": clients,
        "jobs": family.jobs,
    }


def _value(family: FamilyAnswer, index: int) -> str:
    return f"{family.option}={compact(family.values[index])}"


def _lost(family: FamilyAnswer) -> str:
    return ", ".join(share_lost(cost) for cost in family.costs if cost.is_measurable)


def share_lost(cost: Cost) -> str:
    """The lost share with its interval over seeds: ``2.1 [1.0, 3.2] % of accuracy``."""
    low, high = (None if end is None else 100 * end for end in (cost.lost.low, cost.lost.high))
    return f"{Number(100 * cost.lost.mean, 'points', low, high)} % of {cost.measure}"


def _price(family: FamilyAnswer) -> str:
    """What the weakest that holds costs, as the end of a sentence."""
    if not family.costs:
        return ""
    if not all(cost.is_measurable for cost in family.costs):
        return ", at a cost that cannot be told"
    return f", and costs {_lost(family)}{''.join(map(_sureness, family.costs))}"


def _sureness(cost: Cost) -> str:
    """Whether the limit is kept, by all seeds or by their mean alone."""
    seeds = f"{cost.lost.n} seeds"
    if cost.limit is None:
        return "" if cost.sure else f", which {seeds} cannot tell from nothing"
    side = "within" if cost.lost.mean <= cost.limit else "beyond"
    asked = f"{side} the {_percent(cost.limit)} that may be lost"
    return f", surely {asked}" if cost.sure else f", by the mean of {seeds} {asked}, not surely"


def _within(reached: ReachedTarget, value: float, *, beyond: bool = False) -> str:
    """``at most .2``, no more leakage than that; or no less."""
    side = "at most" if reached.more_is_worse != beyond else "at least"
    return f"{side} {measured(reached.target, value)}"
