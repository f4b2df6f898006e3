"""Mean norm of the updates of each class: an update of nearly no length hides its example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.analysis.frames import frame
from experiments.analysis.keys import FamilyKey
from experiments.report.tables import Number, Table
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import cell_defense
from experiments.wording.names import natural, settings
from fedsim.cell import CellConfig

_MOST = 20
"""Largest number of columns that fits the page."""


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
