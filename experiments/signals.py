"""What each defense left of the clean update, in dB, and how small its updates pack."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from experiments.cells import Cell
from experiments.reporting.defense_names import defense_name
from experiments.reporting.labels import natural
from experiments.reporting.tables import Number, Table
from fedsim.defenses import build_chain
from fedsim.files import Record, read_record
from fedsim.signals import ratio
from fedsim.truth import TruthRecord


class SignalRow(Record):
    """One client's update in one round.

    Ratios are ``20 log10(|clean| / |sent - clean|)`` in dB, where ``clean`` is what the same steps
    would have sent without the defense: None where nothing was changed, minus infinity where
    nothing but noise was sent. A change of length counts like any other, so that hard clipping
    comes to 0 dB although all directions are left.

    Attributes:
        probe: ``none`` for a client, else the kind of the probe.
        signal: of the update as a whole.
        lowest: of the tensor that lost most.
        middle: the median over the tensors.
        highest: of the tensor that lost least.
        weakest: the name of the tensor that lost most.
        bytes: of the update, packed as tightly as the defense allows.
        dense: bytes of its tensors as they are.
    """

    cell: str
    seed: int
    defense: str
    defense_options: str
    round: int
    client: int
    probe: str
    signal: float | None
    lowest: float | None
    middle: float | None
    highest: float | None
    weakest: str
    bytes: int
    dense: int


def signals(cell: Cell) -> Iterator[SignalRow]:
    """A row for each client and round of the cell; none of runs that did not measure them."""
    chain = build_chain(cell.config.defense, "defense")
    paths = sorted(cell.truth.root.glob("*.json"))
    for record in (read_record(path, TruthRecord) for path in paths):
        if not record.signals:
            continue
        tensors = record.signals
        each = {name: _level(own.signal) for name, own in tensors.items()}
        weakest = min(each, key=lambda name: each[name])
        yield SignalRow(
            cell=cell.name,
            seed=cell.config.seed,
            defense=chain.name,
            defense_options=chain.options_json,
            round=record.key.round,
            client=record.key.client,
            probe=record.probe,
            signal=ratio(
                math.hypot(*(own.clean for own in tensors.values())),
                math.hypot(*(own.error for own in tensors.values())),
            ),
            lowest=_finite(each[weakest]),
            middle=_finite(_middle(each.values())),
            highest=_finite(max(each.values())),
            weakest=weakest,
            bytes=sum(own.bytes for own in tensors.values()),
            dense=sum(own.dense for own in tensors.values()),
        )


def _level(signal: float | None) -> float:
    """To sort by: nothing was lost where there is no ratio."""
    return math.inf if signal is None else signal


def _finite(level: float) -> float | None:
    return None if level == math.inf else level


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
                    _number([_level(getattr(row, part)) for row in group])
                    for part in ("signal", "lowest", "middle", "highest")
                ),
                Number(median(row.bytes for row in group) / 1024),
                Number(sum(row.bytes for row in group) / sum(row.dense for row in group)),
            )
            for setting, defense, options in ordered
            for group in (groups[setting, defense, options],)
        ),
    )


def _middle(levels: Iterable[float]) -> float:
    """The median, of two middle ones the higher: a mean with infinity says nothing."""
    ordered = sorted(levels)
    return ordered[len(ordered) // 2]


def _number(levels: Iterable[float]) -> Number | None:
    level = _middle(levels)
    return None if level == math.inf else Number(level, "dB")
