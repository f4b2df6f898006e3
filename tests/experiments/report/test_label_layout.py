"""Labels stay in the picture and hide neither one another nor a mark."""

from __future__ import annotations

from itertools import combinations

import pytest
from matplotlib.figure import Figure

from experiments.report.pareto import Box, PlacedMark, shared, write_labels


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.2])
def test_crowded_marks_get_labels_side_by_side(gap: float) -> None:
    canvas = Figure(figsize=(6, 4))
    axes = canvas.add_subplot()
    marks = [
        PlacedMark(1 + gap * i, 2 + gap * i, 1.9, 2.1, f"0.{i}{i}{i}", "black") for i in range(6)
    ]
    axes.plot([mark.x for mark in marks], [mark.y for mark in marks], "o")
    canvas.draw_without_rendering()
    write_labels(axes, marks, [])
    frame = axes.get_window_extent()
    edge: Box = (frame.x0, frame.y0, frame.x1, frame.y1)
    boxes: list[Box] = []
    for text in axes.texts:
        found = text.get_window_extent()
        boxes.append((found.x0, found.y0, found.x1, found.y1))
    for one, other in combinations(boxes, 2):
        assert shared(one, other) == 0
    for box in boxes:
        whole = (box[2] - box[0]) * (box[3] - box[1])
        assert shared(box, edge) == pytest.approx(whole)
