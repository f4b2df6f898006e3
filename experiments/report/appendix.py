"""Tables at the end of a chapter: norms by class, and bounds on any attack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.analysis.frames import frame
from experiments.analysis.keys import FamilyKey
from experiments.bounds.records import LimitsRecord
from experiments.report.limit_tables import rank_table, success_table
from experiments.report.run_results import RunResults
from experiments.report.tables import Number, Table
from experiments.stages.updates import UpdateRow
from experiments.wording.catalogue import sentence
from experiments.wording.defense_names import cell_defense
from experiments.wording.names import natural, settings
from fedsim.config.cell import CellConfig

_MOST = 20
"""Largest number of columns that fits the page."""


def appendix(results: RunResults) -> dict[str, Table]:
    """Heading -> table, for one chapter; what ``fedsim limits`` wrote is of the first seed."""
    limits = results.limits or LimitsRecord(ranks=(), successes=(), budgets=())
    ranks, successes = limits.ranks, limits.successes
    runs = {limit.cell: limit.run for limit in (*ranks, *successes)}
    labels = settings({name: results.cells[name] for name in runs}, runs)
    tables = {
        "Updates by class": class_norms(results.updates, results.cells),
        "Whether exact attacks can work": rank_table(ranks, labels) if ranks else None,
        "How often a guess can be right": success_table(successes, labels) if successes else None,
    }
    return {heading: table.filled for heading, table in tables.items() if table is not None}


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
    lines = tuple(
        {
            "setting": setting,
            "defense": defense,
            "updates": int(counts[setting, defense]),
            **{
                f"class {label}": Number(float(means[key])) if key in means else None
                for label in sorted(classes)
                for key in [(setting, defense, label)]
            },
        }
        for setting, defense in ordered
    )
    return Table("norms-by-class", sentence("table.norms-by-class"), lines)
