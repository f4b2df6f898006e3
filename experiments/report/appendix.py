"""Tables at the end of a chapter: signal and noise, norms by class, and bounds on any attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, median
from typing import TypeAlias

from experiments.analysis.frames import PLACE, frame
from experiments.analysis.keys import DefenseInSetting, FamilyKey
from experiments.report.limit_tables import rank_table, success_table
from experiments.report.naming import named_place
from experiments.report.run_results import RunResults
from experiments.report.tables import Number, Table, named
from experiments.stages.signals import SignalRow, level, middle
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import cell_defense
from experiments.wording.names import natural, settings
from fedsim.cell import CellConfig

_MOST = 20
"""Largest number of columns that fits the page."""

Maker: TypeAlias = Callable[[RunResults], Table | None]
"""What the cells of a chapter came to -> table; None if there is nothing to show."""


def signal_to_noise(results: RunResults) -> Table | None:
    """What each defense left of the update, and the size of what is sent."""
    rows = results.signals
    return signal_table(rows, settings(results.cells, {})) if rows else None


def norms_by_class(results: RunResults) -> Table | None:
    """Mean norm of the updates of each class."""
    return class_norms(results.updates, results.cells)


def rank_lights(results: RunResults) -> Table | None:
    """Whether exact attacks can work; None before ``fedsim limits`` was run."""
    ranks = results.limits.ranks if results.limits else ()
    return rank_table(ranks, _settings(results)) if ranks else None


def success_bounds(results: RunResults) -> Table | None:
    """Largest chance of a right guess under differential privacy."""
    successes = results.limits.successes if results.limits else ()
    return success_table(successes, _settings(results)) if successes else None


def _settings(results: RunResults) -> Mapping[str, str]:
    """The setting of each cell with a rank or a chance; limits are those of the first seed."""
    limits = (*results.limits.ranks, *results.limits.successes) if results.limits else ()
    runs = {limit.cell: limit.run for limit in limits}
    return settings({name: results.cells[name] for name in runs}, runs)


APPENDIX: dict[str, Maker] = {
    "Signal and noise": signal_to_noise,
    "Updates by class": norms_by_class,
    "Whether exact attacks can work": rank_lights,
    "How often a guess can be right": success_bounds,
}
"""Heading on the page -> the function that makes the table."""


def appendix(results: RunResults, stem: str) -> dict[str, Table]:
    """Heading -> table, for one chapter; ``stem`` is the prefix of the tables' names."""
    tables = {heading: make(results) for heading, make in APPENDIX.items()}
    return {
        heading: named([table], stem)[table.name]
        for heading, table in tables.items()
        if table is not None
    }


def signal_table(rows: Iterable[SignalRow], labels: Mapping[str, str]) -> Table:
    """One row per setting and defense: medians over the updates of clients, and the packed size.

    A dash stands for an update, or a tensor, that the defense did not change.

    Args:
        rows: those of probes are ignored.
        labels: cell -> its setting.
    """
    unprobed = [row for row in rows if row.probe == "none"]
    updates = frame(unprobed, SignalRow).assign(setting=[labels[row.cell] for row in unprobed])
    groups = {DefenseInSetting(*key): part for key, part in updates.groupby(PLACE)}
    return Table(
        "signals",
        "What each defense left of the clean update: norm of the clean update over norm of the "
        "change made by the defense, in dB, median over the updates; for the whole update and by "
        "tensor. Then the size of the packed update, and its ratio to the dense one. A dash: the "
        "defense changed nothing there.",
        (
            *("setting", "defense", "updates", "signal (dB)", "lowest tensor (dB)"),
            *("median tensor (dB)", "highest tensor (dB)", "packed KiB", "share of dense"),
        ),
        tuple(
            (
                *named_place(place),
                len(part),
                *(_number(part[name]) for name in ("signal", "lowest", "middle", "highest")),
                Number(median(part.bytes.tolist()) / 1024),
                Number(int(part.bytes.sum()) / int(part.dense.sum())),
            )
            for place, part in sorted(groups.items(), key=lambda item: _order(item[0]))
        ),
    )


def _order(place: DefenseInSetting) -> tuple[object, ...]:
    return (
        natural(place.setting),
        place.defense != "none",
        natural(place.defense + place.defense_options),
    )


def _number(signals: Iterable[float | None]) -> Number | None:
    decibels = middle(map(level, signals))
    return None if decibels == math.inf else Number(decibels, "dB")


def class_norms(rows: Iterable[UpdateRow], cells: Mapping[str, CellConfig]) -> Table | None:
    """One row per setting and defense; None if no update stands for a single example.

    If there are many classes, only those with the shortest and the longest updates are shown.
    """
    labels = settings(cells, {})
    labelled = [row for row in rows if row.label is not None]
    if not labelled:
        return None
    updates = frame(labelled, UpdateRow).assign(
        setting=[labels[row.cell] for row in labelled],
        defense=[cell_defense(cells[row.cell]) for row in labelled],
        label=[row.label for row in labelled],
    )
    means = updates.groupby(["setting", "defense", "label"]).norm.agg(fmean)
    classes = list(dict.fromkeys(means.sort_values(kind="stable").index.get_level_values("label")))
    if len(classes) > _MOST:
        classes = [*classes[: _MOST // 2], *classes[-_MOST // 2 :]]
    counts = updates.groupby(["setting", "defense"]).size()
    ordered = sorted(
        (FamilyKey(*key) for key in counts.index),
        key=lambda place: (natural(place.setting), place.defense != "none", natural(place.defense)),
    )
    return Table(
        "norms-by-class",
        "Mean norm of the updates that stand for a single example, by the class of the example. "
        "The examples of a class with nearly no gradient, for instance one that the weights are "
        "certain of, are safe for that reason alone, and a mean over classes says little.",
        ("setting", "defense", "updates", *(f"class {label}" for label in sorted(classes))),
        tuple(
            (
                *(setting, defense, int(counts[setting, defense])),
                *(
                    Number(float(means[key])) if key in means else None
                    for key in ((setting, defense, label) for label in sorted(classes))
                ),
            )
            for setting, defense in ordered
        ),
    )
