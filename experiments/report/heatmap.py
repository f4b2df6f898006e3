"""A sweep of two options: the leakage of each attack at every pair of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.analysis.findings import Leakage, TaskFindings
from experiments.analysis.keys import AttackKey
from experiments.report.figures import INK, Figure, panel
from experiments.report.naming import attack_label, unit_of_main
from experiments.wording.defense_names import defense_name
from experiments.wording.names import natural, option, show, swept, title
from fedsim.cell import CellConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Grid = dict[tuple[str, str], Leakage]
"""(value of the first option, value of the second) -> leakage, both as they are printed."""


def heatmaps(section: TaskFindings, cells: Mapping[str, CellConfig], stem: str) -> list[Figure]:
    """A panel for each attack and defense where two options, and only two, were swept."""
    values = swept(cells)
    keys = list(next(iter(values.values()), {}))
    if len(keys) != 2:
        return []
    drawn: list[Figure] = []
    for (defense, options, attacker), grid in _grids(section, values, keys).items():
        if all(len({pair[i] for pair in grid}) > 1 for i in (0, 1)):
            heading = f"{attack_label(section, attacker)}\n{defense_name(defense, options)}"
            name = f"{stem}-{len(drawn) + 1}"
            drawn.append(_figure(section, name, heading, keys, grid))
    return drawn


def _grids(
    section: TaskFindings, values: Mapping[str, Mapping[str, Any]], keys: list[str]
) -> dict[tuple[str, str, AttackKey], Grid]:
    grids: dict[tuple[str, str, AttackKey], Grid] = {}
    for result in section.results:
        found = result.leakage.get(section.main)
        if found is None or result.is_null or result.is_control:
            continue
        pairs = {tuple(option(values[cell][key]) for key in keys) for cell in result.cells}
        for first, second in pairs:
            key = (result.defense, result.defense_options, result.attacker)
            grids.setdefault(key, {})[first, second] = found
    return grids


def _figure(section: TaskFindings, name: str, heading: str, keys: list[str], grid: Grid) -> Figure:
    down, across = (sorted({pair[i] for pair in grid}, key=natural) for i in (0, 1))
    unit = unit_of_main(section)
    metric = f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}"
    caption = f"{heading.replace(chr(10), ', ')}: mean {metric} by {keys[0]} and {keys[1]}."

    def draw(axes: Axes) -> None:
        means = [
            [grid[y, x].mean if (y, x) in grid else float("nan") for x in across] for y in down
        ]
        limits = (0.0, 1.0) if unit == "1" else (None, None)
        image = axes.imshow(means, cmap="cividis", aspect="auto", vmin=limits[0], vmax=limits[1])
        low, high = image.get_clim()
        for row, y in enumerate(down):
            for column, x in enumerate(across):
                if (y, x) in grid:
                    value = grid[y, x].mean
                    dark = high == low or (value - low) / (high - low) < 0.55
                    text, colour = show(value, unit), "white" if dark else "black"
                    axes.text(column, row, text, ha="center", va="center", color=colour)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), down)
        axes.set_xlabel(keys[1])
        axes.set_ylabel(keys[0])
        axes.spines[:].set_color(INK)

    return panel(name, caption, heading, draw, legend=False)
