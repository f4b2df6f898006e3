"""A sweep of two options is drawn as a grid; anything else is not."""

from __future__ import annotations

import re

from experiments.analysis.summary import summarise
from experiments.report.chapter import heatmaps
from experiments.wording.names import settings, swept
from fedsim.cell import CellConfig
from fedsim.federation import FederationConfig
from fedsim.records import ScoreRow
from tests.experiments.analysis.cases import cell, row

PAIRS = [(batch, steps) for batch in (16, 4) for steps in (1, 2)]


def grid_cell(batch: int, steps: int, seed: int = 0) -> CellConfig:
    federation = FederationConfig(protocol="fedavg", batch_size=batch, local_steps=steps)
    return cell(seed).model_copy(update={"federation": federation})


def grid_rows(batch: int, steps: int, seed: int = 0) -> list[ScoreRow]:
    name = f"b{batch}s{steps}.{seed}"
    known = {"cell": name, "seed": seed, "protocol": "fedavg"}
    return [row(**known, client=client, value=float(batch + steps)) for client in (0, 1)]


def test_two_swept_options_make_a_grid() -> None:
    cells = {f"b{b}s{s}.{seed}": grid_cell(b, s, seed) for b, s in PAIRS for seed in (0, 1)}
    rows = [grid_row for b, s in PAIRS for seed in (0, 1) for grid_row in grid_rows(b, s, seed)]
    (section,) = summarise(rows, [], cells).sections
    (figure,) = heatmaps(section, cells, "f")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)
    assert texts.index("4") < texts.index("16")  # by value, not by letter
    assert {"5.0", "6.0", "17.0", "18.0"} <= set(texts)
    assert {"federation.batch_size", "federation.local_steps"} <= set(texts)
    (again,) = heatmaps(section, dict(reversed(cells.items())), "f")
    assert (again.svg, again.png) == (figure.svg, figure.png)


def test_one_swept_option_makes_none() -> None:
    cells = {f"b{b}s1.0": grid_cell(b, 1) for b in (16, 4)}
    (section,) = summarise([*grid_rows(16, 1), *grid_rows(4, 1)], [], cells).sections
    assert heatmaps(section, cells, "f") == []
    assert swept(cells)["b4s1.0"] == {"federation.batch_size": 4}
    assert settings(cells, {})["b4s1.0"] == "batch_size=4"
