"""How long the updates of each class are: an update of nearly no length hides its example."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.report.tables import Number, Table
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import cell_defense
from experiments.wording.names import natural, settings
from fedsim.cell import CellConfig

_MOST = 20
"""Columns that still fit on the page."""


def class_norms(rows: Iterable[UpdateRow], cells: Mapping[str, CellConfig]) -> Table | None:
    """Mean norm by class, a line a defense and setting; None without updates of one example.

    Of many classes only those with the shortest and with the longest updates are shown.
    """
    labels = settings(cells, {})
    lines: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.label is not None and row.cell in cells:
            place = labels[row.cell], cell_defense(cells[row.cell])
            lines[place][row.label].append(row.norm)
    if not lines:
        return None
    every = [(fmean(norms), label) for line in lines.values() for label, norms in line.items()]
    classes = sorted({label for _, label in every})
    if len(classes) > _MOST:
        order = list(dict.fromkeys(label for _, label in sorted(every)))
        classes = sorted({*order[: _MOST // 2], *order[-_MOST // 2 :]})
    ordered = sorted(lines, key=lambda k: (natural(k[0]), k[1] != "none", natural(k[1])))
    return Table(
        "norms-by-class",
        "Mean norm of the updates that stand for one example, by its class. Where a class has "
        "nearly no gradient, as under weights that make it certain, its examples are safe for "
        "that reason alone, and a mean over classes says little.",
        ("setting", "defense", "updates", *(f"class {label}" for label in classes)),
        tuple(
            (
                *place,
                sum(map(len, lines[place].values())),
                *(
                    Number(fmean(lines[place][label])) if lines[place].get(label) else None
                    for label in classes
                ),
            )
            for place in ordered
        ),
    )
