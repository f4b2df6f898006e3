"""The report of a run: one page that opens from disk, tables and figures."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.findings import Findings, Problem, TaskFindings
from experiments.console import Console
from experiments.report.chapter import Chapter
from experiments.report.page import render
from experiments.report.run_results import read_results
from experiments.report.tables import Table, to_csv
from experiments.wording.names import title
from fedsim.redaction import redacted
from fedsim.store.files import write_bytes
from fedsim.store.plain_files import make_private

PAGE = "index.html"


def write_report(
    run: Path, findings: Findings, *, redact: bool = False, console: Console | None = None
) -> Path:
    """Write ``report/`` of a run folder; returns the page.

    The page holds private rows as the gallery does, and is its owner's alone as well.

    Args:
        run: the run folder.
        findings: what its scores show, of which ``summary.json`` lacks the times.
        redact: write ``redacted/`` instead, which may be passed on: without private examples, the
            reasons that attacks gave, and the folders of this machine.
        console: where progress is shown; nowhere if not given.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    console = console or Console(quiet=True)
    results = read_results(run, findings, examples=not redact)
    sections = results.findings.sections
    if redact:
        sections = tuple(_unexplained(section) for section in sections)
    folder = run / ("redacted" if redact else "report")
    if not redact:
        make_private(folder)
    chapters = [
        Chapter(number, section, results.of(section.cells))
        for number, section in enumerate(sections, 1)
    ]
    body = render(results, chapters, redact=redact, folder=folder.name)
    content = (redacted(body) if redact else body).encode()
    write_bytes(folder / PAGE, content, private=not redact)
    console.advance("report", "page")
    _write_files(folder, chapters, results.partial, redact=redact)
    console.advance("report", "tables and figures")
    return folder / PAGE


def _unexplained(section: TaskFindings) -> TaskFindings:
    """Jobs counted by their status alone: an attack may write what it guessed as its reason."""
    results = []
    for result in section.results:
        jobs = Counter[str]()
        for problem in result.problems:
            if problem.status != "done":
                jobs[problem.status] += problem.jobs
        counts = [Problem(status=name, reason="", jobs=count) for name, count in jobs.items()]
        results.append(result.model_copy(update={"problems": tuple(counts)}))
    return section.model_copy(update={"results": tuple(results)})


def _write_files(folder: Path, chapters: Sequence[Chapter], partial: str, *, redact: bool) -> None:
    """Tables and figures, and nothing that an earlier report left."""
    for part in ("tables", "figures"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for table in pooled([(chapter.section, chapter.all_tables) for chapter in chapters]):
        fit = table.more(**{"jobs run": partial}) if partial else table
        fit = fit.mapped(redacted) if redact else fit
        write_bytes(folder / "tables" / f"{table.name}.csv", to_csv(fit).encode())
    for figure in (figure for chapter in chapters for figure in chapter.all_figures):
        path, svg = folder / "figures" / f"{figure.name}.svg", figure.svg
        if redact and redacted(svg) != svg:
            svg = redacted(svg)  # and no picture of pixels, in which the path would stand
        else:
            write_bytes(path.with_suffix(".png"), figure.png)
        write_bytes(path, svg.encode())


def pooled(parts: Sequence[tuple[TaskFindings, Sequence[Table]]]) -> list[Table]:
    """The tables of several tasks by kind, each row with the task that it is of; none is empty."""
    pools: dict[str, Table] = {}
    for section, tables in parts:
        where = {
            "task": title(section.task),
            "dataset": section.dataset,
            "model": section.model,
            "protocol": title(section.protocol),
        }
        for table in tables:
            before = pools[table.name].rows if table.name in pools else ()
            rows = (*before, *({**where, **row} for row in table.rows))
            pools[table.name] = Table(table.name, table.caption, rows)
    return [table for table in pools.values() if table.rows]
