"""The table of what each defense left of the clean update, and of the size of what is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from experiments.analysis.frames import PLACE, frame
from experiments.analysis.keys import DefenseInSetting
from experiments.report.naming import named_place
from experiments.report.tables import Number, Table
from experiments.stages.signals import SignalRow, level, middle
from experiments.wording.names import natural


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
