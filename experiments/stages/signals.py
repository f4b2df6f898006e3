"""Signal that each defense leaves in an update, in dB, and the size of the packed update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from experiments.plan.cells import Cell
from experiments.stages.utility import defense_of
from fedsim.files import Record
from fedsim.signals import ratio


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
    defense = defense_of(cell)
    for record in cell.truth.clients():
        if not record.signals:
            continue
        tensors = record.signals
        each = {name: level(tensor.signal) for name, tensor in tensors.items()}
        weakest = min(each, key=lambda name: each[name])
        yield SignalRow(
            cell=cell.name,
            seed=cell.config.seed,
            **defense._asdict(),
            round=record.key.round,
            client=record.key.client,
            probe=record.probe,
            signal=ratio(
                math.hypot(*(tensor.clean for tensor in tensors.values())),
                math.hypot(*(tensor.error for tensor in tensors.values())),
            ),
            lowest=_finite(each[weakest]),
            middle=_finite(middle(each.values())),
            highest=_finite(max(each.values())),
            weakest=weakest,
            bytes=sum(tensor.bytes for tensor in tensors.values()),
            dense=sum(tensor.dense for tensor in tensors.values()),
        )


def level(signal: float | None) -> float:
    """To sort by: nothing was lost where there is no ratio."""
    return math.inf if signal is None else signal


def _finite(level: float) -> float | None:
    return None if level == math.inf else level


def middle(levels: Iterable[float]) -> float:
    """The median, of two middle ones the higher: a mean with infinity says nothing."""
    ordered = sorted(levels)
    return ordered[len(ordered) // 2]
