"""Labels of marks in a picture, placed where they hide neither one another nor a mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT = 8.0
WAYS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
REACHES = (5.0, 12.0, 20.0, 30.0, 42.0)
Position: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """Something to label, in data coordinates: its place and the ends of its interval."""

    x: float
    y: float
    low: float
    high: float
    label: str
    colour: str


def write_labels(axes: Axes, marks: Sequence[PlacedMark], line: Sequence[Position]) -> None:
    """Write each label at the nearest place that covers the least, greedily, in their order.

    Args:
        axes: laid out for good, since places are found in points.
        marks: what is labelled.
        line: corners of a line to keep off.
    """
    frame = axes.get_window_extent()
    edge = _points(axes, frame.x0, frame.y0) + _points(axes, frame.x1, frame.y1)
    taken = _marked(axes, marks) + _along([_at(axes, *corner) for corner in line])
    for mark in marks:
        offset, box = _place(_at(axes, mark.x, mark.y), mark.label, taken, edge)
        taken.append(box)
        axes.annotate(
            mark.label,
            (mark.x, mark.y),
            offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT,
            color=mark.colour,
        ).set_in_layout(False)


def _points(axes: Axes, x: float, y: float) -> Position:
    """Pixels as points."""
    scale = 72 / axes.figure.dpi
    return float(x) * scale, float(y) * scale


def _at(axes: Axes, x: float, y: float) -> Position:
    """Data coordinates as points."""
    return _points(axes, *axes.transData.transform((x, y)))


def _marked(axes: Axes, marks: Sequence[PlacedMark]) -> list[Box]:
    """What the marks and their intervals cover."""
    boxes = []
    for mark in marks:
        x, y = _at(axes, mark.x, mark.y)
        low, high = _at(axes, mark.x, mark.low)[1], _at(axes, mark.x, mark.high)[1]
        boxes += [(x - 4, y - 4, x + 4, y + 4), (x - 2, low, x + 2, high)]
    return boxes


def _along(corners: Sequence[Position], pieces: int = 30) -> list[Box]:
    """A line as small boxes."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        for i in range(1, pieces):
            x, y = x0 + (x1 - x0) * i / pieces, y0 + (y1 - y0) * i / pieces
            boxes.append((x - 2, y - 2, x + 2, y + 2))
    return boxes


def _place(at: Position, label: str, taken: Sequence[Box], edge: Box) -> tuple[Position, Box]:
    """Offset of the middle of a label from its mark, and what it covers there."""
    width, height = 0.64 * FONT * len(label) + 2, 1.25 * FONT
    choices = []
    for reach, (right, up) in product(REACHES, WAYS):
        offset = right * (reach + width / 2), up * (reach + height / 2)
        left, bottom = at[0] + offset[0] - width / 2, at[1] + offset[1] - height / 2
        box = (left, bottom, left + width, bottom + height)
        outside = width * height - shared(box, edge)
        covered = sum(shared(box, other) for other in taken)
        choices.append((covered + 3 * outside + reach, offset, box))
    _, offset, box = min(choices, key=lambda choice: choice[0])
    return offset, box


def shared(box: Box, other: Box) -> float:
    """The area that two boxes have in common."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(0.0, width) * max(0.0, height)
