"""The table of leakage in the first, the middle and the last captured round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import pandas as pd

from experiments.analysis.findings import Result, TaskFindings
from experiments.analysis.frames import PLACE, frame
from experiments.analysis.keys import DefenseInSetting
from experiments.report.naming import attack_name, named_place, place_of
from experiments.report.tables import Number, Table, Value
from experiments.stages.updates import UpdateRow
from experiments.wording.names import title


def trend(section: TaskFindings, updates: Iterable[UpdateRow]) -> Table:
    """One row per attack, defense and kind of probe with two captured rounds or more."""
    norms = mean_norms(section, updates)
    shown = [
        result
        for result in section.results
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1
    ]
    return Table(
        "trend",
        f"Mean {title(section.main)} in the first, middle and last captured round with its 95 % "
        "interval, clustered by client, and the mean norm of the updates of these rounds. Clients "
        "that do not use all of their rows train on others in each round, probes always on the "
        "same: "
        f"{place_of(section)}.",
        (
            *("setting", "defense", "attack", "probe", "rounds", "first", "middle", "last"),
            *("norm first", "norm middle", "norm last"),
        ),
        tuple(_row(section, result, norms) for result in shown),
    )


def _row(
    section: TaskFindings, result: Result, norms: Mapping[tuple[DefenseInSetting, int], float]
) -> tuple[Value, ...]:
    rounds = result.rounds[section.main]
    numbers = list(rounds)
    middle = numbers[len(numbers) // 2] if len(numbers) > 2 else None
    picked = (numbers[0], middle, numbers[-1])
    leakages = [None if number is None else rounds[number] for number in picked]
    lengths = [None if n is None else norms.get((result.place, n)) for n in picked]
    return (
        *named_place(result.place),
        attack_name(section, result),
        "" if result.probe == "none" else result.probe,
        ", ".join(str(number) for number in picked if number is not None),
        *(
            Number(leakage.mean, leakage.unit, leakage.low, leakage.high) if leakage else None
            for leakage in leakages
        ),
        *(None if length is None else Number(length) for length in lengths),
    )


def mean_norms(
    section: TaskFindings, rows: Iterable[UpdateRow]
) -> Mapping[tuple[DefenseInSetting, int], float]:
    """Mean norm of the updates over clients and seeds, by defense and round."""
    places = section.by_cell
    here = [row for row in rows if row.cell in places]
    owners = pd.DataFrame([places[row.cell] for row in here], columns=PLACE)
    updates = frame(here, UpdateRow).join(owners)
    return {
        (DefenseInSetting(*place), number): fmean(norms)
        for (*place, number), norms in updates.groupby([*PLACE, "round"]).norm
    }
