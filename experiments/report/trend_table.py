"""The first, the middle and the last captured round side by side, and how long updates were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.analysis.findings import Result, TaskFindings
from experiments.analysis.keys import DefenseKey
from experiments.report.naming import attack_name, named_place, place_of
from experiments.report.tables import Number, Table, Value
from experiments.stages.updates import UpdateRow
from experiments.wording.names import title


def trend(section: TaskFindings, updates: Iterable[UpdateRow]) -> Table:
    """One row an attack, defense and probe that was observed in two rounds or more."""
    norms = mean_norms(section, updates)
    shown = [
        result
        for result in section.results
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1
    ]
    return Table(
        "trend",
        f"Mean {title(section.main)} in the first, middle and last captured round with its 95 % "
        "interval, clustered by client, and the mean norm of the updates in these rounds. Clients "
        f"use other rows in each round, probes the same: {place_of(section)}.",
        (
            *("setting", "defense", "attack", "probe", "rounds", "first", "middle", "last"),
            *("norm first", "norm middle", "norm last"),
        ),
        tuple(_row(section, result, norms) for result in shown),
    )


def _row(
    section: TaskFindings, result: Result, norms: Mapping[tuple[DefenseKey, int], float]
) -> tuple[Value, ...]:
    rounds = result.rounds[section.main]
    numbers = list(rounds)
    middle = numbers[len(numbers) // 2] if len(numbers) > 2 else None
    picked = (numbers[0], middle, numbers[-1])
    found = [None if number is None else rounds[number] for number in picked]
    lengths = [None if n is None else norms.get((result.place, n)) for n in picked]
    return (
        *named_place(result.place),
        attack_name(section, result),
        "" if result.probe == "none" else result.probe,
        ", ".join(str(number) for number in picked if number is not None),
        *(Number(one.mean, one.unit, one.low, one.high) if one else None for one in found),
        *(None if length is None else Number(length) for length in lengths),
    )


def mean_norms(
    section: TaskFindings, rows: Iterable[UpdateRow]
) -> Mapping[tuple[DefenseKey, int], float]:
    """(place, round) -> the mean norm over clients and seeds."""
    places = section.by_cell
    groups: dict[tuple[DefenseKey, int], list[float]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.cell, row.round, row.client)):
        if row.cell in places:
            groups[places[row.cell], row.round].append(row.norm)
    return {key: fmean(norms) for key, norms in groups.items()}
