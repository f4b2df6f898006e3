"""Norms of the captured updates, round by round."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from experiments.plan.cells import Cell
from fedsim.api.victims import Victims
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.files import Record


class UpdateRow(Record):
    """One captured update; a row of ``updates.parquet``.

    Attributes:
        norm: Euclidean, over all that the client sent: of a gradient, or of sent less received
            weights.
        label: class of the one example behind the update, where there is one and it has a class.
    """

    cell: str
    round: int
    client: int
    norm: float
    label: int | None = None


def updates(victims: Victims[Cell]) -> Iterator[UpdateRow]:
    """The norms of a cell's captures, those of probes left out."""
    for key, record in victims.records.items():
        if record.probe == "none":
            yield UpdateRow(
                cell=victims.cell.name,
                round=key.round,
                client=key.client,
                norm=norm_of(victims.cell.captures.load(key)),
                label=_label(victims, key) if len(record.rows) == 1 else None,
            )


def _label(victims: Victims[Cell], key: CaptureKey) -> int | None:
    labels = victims.batch(key).labels  # of a language model, the target at each position
    return int(labels) if labels.dim() == 1 else None


def norm_of(observation: Observation) -> float:
    """The norm of the update; tensor by tensor, as a large model is larger still in float64."""
    squares = torch.zeros((), dtype=torch.float64)
    for name in observation.received:
        for value in observation.update({name}).values():
            squares += value.square().sum()
    return float(squares.sqrt())
