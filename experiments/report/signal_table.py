"""What each defense left of the update, and the size of what is sent, as a table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from experiments.report.tables import Number, Table
from experiments.stages.signals import SignalRow, level, middle
from experiments.wording.defense_names import defense_name
from experiments.wording.names import natural


def signal_table(rows: Iterable[SignalRow], labels: Mapping[str, str]) -> Table:
    """One line a setting and defense: medians over the updates of clients, and the packed size.

    A dash stands for an update, or a tensor, that was not changed.

    Args:
        rows: those of probes are left out.
        labels: cell -> its setting.
    """
    groups: defaultdict[tuple[str, str, str], list[SignalRow]] = defaultdict(list)
    for row in rows:
        if row.probe == "none":
            groups[labels[row.cell], row.defense, row.defense_options].append(row)
    ordered = sorted(
        groups, key=lambda key: (natural(key[0]), key[1] != "none", natural(key[1] + key[2]))
    )
    return Table(
        "signals",
        "What each defense left of the clean update: ratio of the clean update to what the "
        "defense changed, median over the updates, of the whole and by tensor; and the size of "
        "the packed update relative to the dense one. A dash: the defense changed nothing there.",
        (
            "setting",
            "defense",
            "updates",
            "signal (dB)",
            "lowest tensor (dB)",
            "median tensor (dB)",
            "highest tensor (dB)",
            "packed KiB",
            "share of dense",
        ),
        tuple(
            (
                setting,
                defense_name(defense, options),
                len(group),
                *(
                    _number([level(getattr(row, part)) for row in group])
                    for part in ("signal", "lowest", "middle", "highest")
                ),
                Number(median(row.bytes for row in group) / 1024),
                Number(sum(row.bytes for row in group) / sum(row.dense for row in group)),
            )
            for setting, defense, options in ordered
            for group in (groups[setting, defense, options],)
        ),
    )


def _number(levels: Iterable[float]) -> Number | None:
    level = middle(levels)
    return None if level == math.inf else Number(level, "dB")
