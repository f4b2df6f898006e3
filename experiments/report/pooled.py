"""One table over all tasks of a run, so that the number of files does not grow with the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.analysis.findings import TaskFindings
from experiments.report.tables import Table
from experiments.wording.names import title

WHERE = ("task", "dataset", "model", "protocol")


def pooled(parts: Sequence[tuple[TaskFindings, Mapping[str, Table]]]) -> list[Table]:
    """The tables of several tasks by kind, each row with the task that it is of; none is empty.

    A column that a task lacks is blank there.
    """
    kinds = dict.fromkeys(kind for _, tables in parts for kind in tables)
    pools = []
    for kind in kinds:
        mine = [(section, tables[kind]) for section, tables in parts if kind in tables]
        columns = tuple(dict.fromkeys(name for _, table in mine for name in table.columns))
        rows = tuple(
            (
                title(section.task),
                *(section.dataset, section.model, title(section.protocol)),
                *(values.get(name) for name in columns),
            )
            for section, table in mine
            for values in (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        )
        if rows:
            pools.append(Table(kind, mine[0][1].caption, (*WHERE, *columns), rows))
    return pools
