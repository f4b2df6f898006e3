"""The answer of a calibration in sentences and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.decision.answer import Answer, Cost, FamilyAnswer, ReachedTarget, Tried
from experiments.decision.search import Errors
from experiments.decision.targets import (
    CAP,
    SHARES,
    Target,
    clients_needed,
    parse_targets,
    unit_of,
)
from experiments.report.tables import Number, Table, Value, to_terminal
from experiments.wording.defense_names import compact
from experiments.wording.names import show, title

COLUMNS = (
    "defense",
    "weakest that holds",
    "bracket",
    "leakage, surely at most",
    "utility lost",
    "clients",
    "jobs",
)


def targets_of(answer: Answer) -> tuple[Target, ...]:
    """What was to be held."""
    return parse_targets(answer.question.hold, answer.question.share)


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
        return (
            "Nothing is decided: without a defense these attacks are not shown to leak what is to "
            f"be held ({state(answer.undefended)}), so that no defense can be shown to stop them. "
            "Take stronger attacks, more clients, or targets closer to the blind guess"
        )
    if answer.chosen is not None:
        chosen = answer.families[answer.chosen]
        tried = chosen.at_weakest
        assert tried is not None
        return (
            f"{tried.name} is the weakest that holds{_end(chosen)}{_price(chosen)}{_once(answer)}"
        )
    if any(family.outcome == "costs too much" for family in answer.families):
        return "No defense holds at that cost: what holds loses more utility"
    if all(family.outcome == "leaks" for family in answer.families):
        return "No defense holds: each leaks at its strongest"
    return "No defense is shown to hold"


def _end(family: FamilyAnswer) -> str:
    """That the answer is the strongest strength of the range, where nothing stronger was there."""
    last = len(family.values) > 1 and family.weakest == len(family.values) - 1
    return ", the strongest of its range" if last else ""


def _once(answer: Answer) -> str:
    """Of how little the answer is, where it is of one training or of the first round alone."""
    training = "of one training" if answer.trainings == 1 else ""
    first = "in round 1" if answer.rounds.startswith("round 1 of") else ""
    said = ", ".join(filter(None, (training, first)))
    return f" ({said})" if said else ""


def _reached_bounds(tried: Tried) -> str:
    """What all clients show: ``0 of 48 verbatim: at most 6 %``."""
    shares = [reached for reached in tried.reached if reached.target in SHARES]
    return "; ".join(
        f"{round(reached.mean * reached.clients)} of {reached.clients} {reached.target}: at most "
        f"{_percent(reached.high)}"
        for reached in shares
    )


def outcome(family: FamilyAnswer) -> str:
    """What became of a family, in a sentence."""
    tried, values = family.tried, family.values
    at = family.at_weakest
    if at is None:
        last = tried[-1]
        return f"{family.title}: none is shown to hold; {last.name} {state(last)}"
    if family.outcome == "costs too much":
        lost = _lost(family) or "as its training diverged, or is of no use without a defense either"
        return f"{at.name} holds, and loses too much: {lost}{''.join(map(_sureness, family.costs))}"
    if family.weakest == 0 and len(values) > 1:
        return (
            f"everything in the range holds, from {at.name} on{_beside_blind(at)}; a weaker one "
            "may do"
        )
    bounds = _reached_bounds(at)
    said = f"{at.name} holds{_end(family)}{f' ({bounds})' if bounds else ''}{_beside_blind(at)}"
    gaps = " and ".join(f"{gap.name} {state(gap)}" for gap in family.gaps)
    return f"{said}. NOT MONOTONE: {gaps}, though it is stronger" if gaps else said


def _beside_blind(tried: Tried) -> str:
    """What the attacks came to there, beside a guess that sees no update."""
    clauses = [
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
    upto = len(family.values) if family.weakest is None else family.weakest
    undecided = sorted(trial.index for trial in family.tried if family.leaking < trial.index < upto)
    if undecided:
        parts.append(f"{' and '.join(_value(family, index) for index in undecided)} open")
    if family.weakest is not None:
        parts.append(f"{_value(family, family.weakest)} holds")
    return ", ".join(parts)


def state(tried: Tried) -> str:
    """The word on one strength with its bound: ``leaks: rouge1 at least .4 by span``."""
    reached = next(target for target in tried.reached if target.target == tried.target)
    if tried.word == "leaks":
        return f"leaks: {tried.target} surely {_beyond(reached, reached.low)}, by {tried.attack}"
    if tried.word == "holds":
        return f"holds: {tried.target} surely {_within(reached, reached.high)}"
    ends = sorted((reached.low, reached.high))
    shown = " and ".join(measured(tried.target, end) for end in ends)
    why = f"; {tried.reason}" if tried.reason else ""
    return f"is open: {tried.target} between {shown}{why}"


def table(answer: Answer) -> Table:
    """One line for each family, after that of no defense."""
    rows = [_undefended(answer.undefended), *(_row(family) for family in answer.families)]
    holds = "; ".join(goal(target) for target in targets_of(answer))
    caption = (
        f"The weakest strength of each defense that holds: {holds}. Of all words holds and of all "
        f"words leaks, any is wrong with at most {_percent(answer.question.error)}."
    )
    return Table("calibration", caption, COLUMNS, tuple(rows))


def notes(answer: Answer) -> Iterator[str]:
    """What a reader has to know beside the table."""
    for family in answer.families:
        if answer.undefended.word == "leaks":
            yield f"{outcome(family)}."
    if any(not cost.is_measurable for family in answer.families for cost in family.costs):
        yield (
            "Without a defense the model is not surely better than before training, so that no "
            "cost can be told: train it longer."
        )
    sizes = [len(family.values) for family in answer.families]
    error = Errors.shared(answer.question.error, sizes, 1, 1).holds
    yield f"Attacked was {answer.rounds}, by {', '.join(answer.attacks)}."
    for reached in answer.undefended.reached:
        target = next(t for t in targets_of(answer) if t.name == reached.target)
        if reached.blind is not None and (
            floor := blind_floor(target, reached.blind, answer.undefended.available, error)
        ):
            yield floor
    every = (answer.undefended, *(trial for family in answer.families for trial in family.tried))
    for name, reached in ((trial.name, reached) for trial in every for reached in trial.reached):
        if reached.contradictory:
            yield (
                f"CONTRADICTION: under {name} {reached.target} is surely "
                f"{_beyond(reached, reached.low)}, and by what its noise leaves it should be "
                f"{_within(reached, reached.bound)}: an assumption or a number is wrong."
            )
    yield (
        f"{answer.jobs:,} attacks on captures were run; every strength on every client would be "
        f"{answer.grid:,}."
    )
    if not any(target.startswith("label_accuracy=") for target in answer.question.hold):
        yield (
            "Labels, members and other targets were not asked for; where rows have classes, "
            "--hold label_accuracy=.7 would hold these."
        )
    yield (
        "It is taken for granted that other clients are like these, and that what holds does so at "
        "every greater strength; of those one more was tried. A stronger attack may still succeed."
    )
    yield (
        f"The rows ({answer.rows}) are taken as public. Were they private, the search would have "
        "to be charged to epsilon: it chose by what it read of them, without noise, so that the "
        "epsilon of the chosen defense would not be that of the choice."
    )


def blind_floor(target: Target, blind: float, clients: int, error: float) -> str:
    """That no defense, or not so few clients, can hold what a blind guess reaches; else empty.

    Args:
        target: what is to be held.
        blind: mean of the guess that sees no update, in units of the target.
        clients: that can be attacked.
        error: of an upper bound.
    """
    reaches = f"reaches {measured(target.name, blind)} of {target.name}"
    if target.scaled(blind) >= target.passes:
        return (
            f"A guess that sees no update {reaches} itself, so that no defense can hold "
            f"{target.text()}."
        )
    needed = clients_needed(target, target.scaled(blind), error)
    if needed <= clients:
        return ""
    return (
        f"A guess that sees no update {reaches}. At that {target.text()} takes about {needed:,} "
        f"clients to show, and there are {clients}: add clients, as a simulation may have more "
        "than the federation that it stands for, or hold a greater value."
    )


def text(answer: Answer, files: str) -> str:
    """For a terminal."""
    said = [f"- {note}" for note in notes(answer)]
    return "\n".join([to_terminal(table(answer)), f"{headline(answer)}.", *said, files])


def leakage(tried: Tried) -> str:
    """The upper bound by each target: of these attacks, and of any where that is known."""
    return ", ".join(
        f"{reached.target} {_within(reached, reached.high)}"
        + ("" if reached.bound is None else f" (any attack: {_within(reached, reached.bound)})")
        for reached in tried.reached
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _row(family: FamilyAnswer) -> tuple[Value, ...]:
    at = family.at_weakest
    clients = at.clients if at else max((trial.clients for trial in family.tried), default=0)
    return (
        family.title,
        "none" if at is None else _value(family, at.index) if family.option else "as it is",
        bracket(family),
        leakage(at) if at else "",
        _lost(family),
        clients,
        family.jobs,
    )


def _undefended(tried: Tried) -> tuple[Value, ...]:
    return (tried.name, "", tried.word, "", "", tried.clients, tried.jobs)


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


def _within(reached: ReachedTarget, value: float | None) -> str:
    side = "at most" if reached.more_is_worse else "at least"
    return f"{side} {measured(reached.target, value)}"


def _beyond(reached: ReachedTarget, value: float) -> str:
    side = "at least" if reached.more_is_worse else "at most"
    return f"{side} {measured(reached.target, value)}"
