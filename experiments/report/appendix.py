"""Tables at the end of a chapter: signal and noise, norms by class, and bounds on any attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import TypeAlias

from experiments.analysis.frames import PLACE, frame
from experiments.analysis.keys import DefenseInSetting, FamilyKey
from experiments.bounds.records import LimitsRecord
from experiments.report.limit_tables import rank_table, success_table
from experiments.report.naming import named_place
from experiments.report.tables import Number, Table, named
from experiments.stages.rows import read_rows
from experiments.stages.signals import SignalRow, level, middle
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import cell_defense
from experiments.wording.names import natural, settings
from fedsim.cell import CellConfig
from fedsim.files import read_record

_MOST = 20
"""Largest number of columns that fits the page."""

Maker: TypeAlias = Callable[[Path, Mapping[str, CellConfig]], Table | None]
"""Run folder, cells of a chapter by name -> table; None if there is nothing to show."""


def signal_to_noise(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """What each defense left of the update, and the size of what is sent."""
    path = run / "signals.parquet"
    rows = read_rows(path, SignalRow) if path.exists() else []
    mine = [row for row in rows if row.cell in cells]
    return signal_table(mine, settings(cells, {})) if mine else None


def norms_by_class(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Mean norm of the updates of each class."""
    path = run / "updates.parquet"
    return class_norms(read_rows(path, UpdateRow), cells) if path.exists() else None


def rank_lights(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Whether exact attacks can work; None before ``fedsim limits`` was run."""
    limits, labels = _limits(run, cells)
    return rank_table(limits.ranks, labels) if limits.ranks else None


def success_bounds(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Largest chance of a right guess under differential privacy."""
    limits, labels = _limits(run, cells)
    return success_table(limits.successes, labels) if limits.successes else None


def _limits(run: Path, cells: Mapping[str, CellConfig]) -> tuple[LimitsRecord, Mapping[str, str]]:
    """Limits of the cells, none without ``limits.json``, and the setting of each cell."""
    path = run / "limits.json"
    if not path.exists():
        return LimitsRecord(ranks=(), successes=(), budgets=()), {}
    record = read_record(path, LimitsRecord)
    here = LimitsRecord(
        ranks=tuple(rank for rank in record.ranks if rank.cell in cells),
        successes=tuple(success for success in record.successes if success.cell in cells),
        budgets=(),
    )
    runs = {limit.cell: limit.run for limit in (*here.ranks, *here.successes)}
    return here, settings({name: cells[name] for name in runs}, runs)


APPENDIX: dict[str, Maker] = {
    "Signal and noise": signal_to_noise,
    "Updates by class": norms_by_class,
    "Whether exact attacks can work": rank_lights,
    "How often a guess can be right": success_bounds,
}
"""Heading on the page -> the function that makes the table."""


def appendix(run: Path, cells: Mapping[str, CellConfig], stem: str) -> dict[str, Table]:
    """Heading -> table, for one chapter; ``stem`` is the prefix of the tables' names."""
    tables = {heading: make(run, cells) for heading, make in APPENDIX.items()}
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
    labelled = [row for row in rows if row.label is not None and row.cell in cells]
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
