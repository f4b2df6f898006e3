"""Tables at the end of a chapter: signal and noise, norms by class, and bounds on any attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from experiments.bounds.records import LimitsRecord
from experiments.report.class_norms import class_norms
from experiments.report.limit_tables import rank_table, success_table
from experiments.report.signal_table import signal_table
from experiments.report.tables import Table, named
from experiments.stages.rows import read_rows
from experiments.stages.signals import SignalRow
from experiments.stages.updates import UpdateRow
from experiments.wording.names import settings
from fedsim.cell import CellConfig
from fedsim.files import read_record

Maker: TypeAlias = Callable[[Path, Mapping[str, CellConfig]], Table | None]
"""Run folder, cells of a chapter by name -> table; None if there is nothing to show."""


def signal_to_noise(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """What each defense left of the update, and the size of what is sent."""
    path = run / "signals.parquet"
    rows = read_rows(path, SignalRow) if path.exists() else []
    mine = [row for row in rows if row.cell in cells]
    return signal_table(mine, settings(cells, {})) if mine else None


def norms_by_class(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Mean norm of the updates of each class."""
    path = run / "updates.parquet"
    return class_norms(read_rows(path, UpdateRow), cells) if path.exists() else None


def rank_lights(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Whether exact attacks can work; None before ``fedsim limits`` was run."""
    limits, labels = _limits(run, cells)
    return rank_table(limits.ranks, labels) if limits.ranks else None


def success_bounds(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """Largest chance of a right guess under differential privacy."""
    limits, labels = _limits(run, cells)
    return success_table(limits.successes, labels) if limits.successes else None


def _limits(run: Path, cells: Mapping[str, CellConfig]) -> tuple[LimitsRecord, Mapping[str, str]]:
    """Limits of the cells, none without ``limits.json``, and the setting of each cell."""
    path = run / "limits.json"
    if not path.exists():
        return LimitsRecord(ranks=(), successes=(), budgets=()), {}
    record = read_record(path, LimitsRecord)
    here = LimitsRecord(
        ranks=tuple(rank for rank in record.ranks if rank.cell in cells),
        successes=tuple(success for success in record.successes if success.cell in cells),
        budgets=(),
    )
    runs = {limit.cell: limit.run for limit in (*here.ranks, *here.successes)}
    return here, settings({name: cells[name] for name in runs}, runs)


APPENDIX: dict[str, Maker] = {
    "Signal and noise": signal_to_noise,
    "Updates by class": norms_by_class,
    "Whether exact attacks can work": rank_lights,
    "How often a guess can be right": success_bounds,
}
"""Heading on the page -> the function that makes the table."""


def appendix(run: Path, cells: Mapping[str, CellConfig], stem: str) -> dict[str, Table]:
    """Heading -> table, for one chapter; ``stem`` is the prefix of the tables' names."""
    tables = {heading: make(run, cells) for heading, make in APPENDIX.items()}
    return {
        heading: named([table], stem)[table.name]
        for heading, table in tables.items()
        if table is not None
    }
