"""Leakage of each attack over a sweep of two options, as a grid of coloured fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.analysis.findings import Leakage, TaskFindings
from experiments.report.figures import INK, Figure, panel
from experiments.report.naming import attack_label, named_place, unit_of_main
from experiments.wording.names import natural, option, show, swept, title
from fedsim.cell import CellConfig
from fedsim.records import AttackKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Field(NamedTuple):
    """The values of both options, as they are printed."""

    down: str
    across: str


Grid = dict[Field, Leakage]


def heatmaps(section: TaskFindings, cells: Mapping[str, CellConfig], stem: str) -> list[Figure]:
    """A panel per attack and defense; none unless exactly two options were swept."""
    values = swept(cells)
    keys = list(next(iter(values.values()), {}))
    if len(keys) != 2:
        return []
    drawn: list[Figure] = []
    for (defense, attacker), grid in _grids(section, values, Field(*keys)).items():
        if all(len(set(ticks)) > 1 for ticks in zip(*grid, strict=True)):
            heading = f"{attack_label(section, attacker)}\n{defense}"
            name = f"{stem}-{len(drawn) + 1}"
            drawn.append(_figure(section, name, heading, Field(*keys), grid))
    return drawn


def _grids(
    section: TaskFindings, values: Mapping[str, Mapping[str, Any]], options: Field
) -> dict[tuple[str, AttackKey], Grid]:
    """(name of the defense, attack) -> its mean at each pair of values."""
    grids: dict[tuple[str, AttackKey], Grid] = {}
    for result in section.results:
        leakage = result.leakage.get(section.main)
        if leakage is None or result.is_null or result.is_control:
            continue
        grid = grids.setdefault((named_place(result.place)[1], result.attacker), {})
        for cell_options in (values[cell] for cell in result.cells):
            grid[
                Field(option(cell_options[options.down]), option(cell_options[options.across]))
            ] = leakage
    return grids


def _figure(section: TaskFindings, name: str, heading: str, options: Field, grid: Grid) -> Figure:
    down = sorted({field.down for field in grid}, key=natural)
    across = sorted({field.across for field in grid}, key=natural)
    unit = unit_of_main(section)
    metric = f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}"
    caption = (
        f"{heading.replace(chr(10), ', ')}: mean {metric} by {options.down} and {options.across}."
    )

    def draw(axes: Axes) -> None:
        means = [
            [grid[f].mean if (f := Field(y, x)) in grid else math.nan for x in across] for y in down
        ]
        limits = (0.0, 1.0) if unit == "1" else (None, None)
        image = axes.imshow(means, cmap="cividis", aspect="auto", vmin=limits[0], vmax=limits[1])
        low, high = image.get_clim()
        for row, y in enumerate(down):
            for column, x in enumerate(across):
                if (field := Field(y, x)) in grid:
                    value = grid[field].mean
                    dark = high == low or (value - low) / (high - low) < 0.55
                    text, colour = show(value, unit), "white" if dark else "black"
                    axes.text(column, row, text, ha="center", va="center", color=colour)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), down)
        axes.set_xlabel(options.across)
        axes.set_ylabel(options.down)
        axes.spines[:].set_color(INK)

    return panel(name, caption, heading, draw, legend=False)
