"""The report of a run: one page that opens from disk, tables and figures."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.analysis.findings import Findings, Problem, TaskFindings
from experiments.console import Console
from experiments.report.chapter import Chapter
from experiments.report.page import render
from experiments.report.run_results import read_results
from experiments.report.tables import Table, to_csv, write_table
from experiments.wording.names import title
from fedsim.files import write_bytes
from fedsim.plain_files import make_private
from fedsim.redaction import redacted

WHERE = ("task", "dataset", "model", "protocol")

PAGES = {False: "index.html", True: "full.html"}
"""In full or not -> the file of the page."""


def write_report(
    run: Path,
    findings: Findings,
    *,
    redact: bool = False,
    full: bool = False,
    console: Console | None = None,
) -> Path:
    """Write ``report/`` of a run folder; returns the page.

    The page holds private rows as the gallery does, and is its owner's alone as well.

    Args:
        run: the run folder.
        findings: what its scores show, of which ``summary.json`` lacks the times.
        redact: write ``redacted/`` instead, which may be passed on: without private examples, the
            reasons that attacks gave, and the folders of this machine.
        full: write ``full.html``, too, with every table and guess, and each task's tables as CSV,
            Markdown and LaTeX beside the few that pool all tasks; returns that page.
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
    pages = {
        whole: [
            Chapter(number, section, results.of(section.cells), full=whole)
            for number, section in enumerate(sections, 1)
        ]
        for whole in {False, full}
    }
    for whole, chapters in pages.items():
        body = render(results, chapters, full=whole, redact=redact, folder=folder.name)
        content = (redacted(body) if redact else body).encode()
        write_bytes(folder / PAGES[whole], content, private=not redact)
    if not full:
        (folder / PAGES[True]).unlink(missing_ok=True)  # it would be of an earlier report
    console.advance("report", "page")
    _write_files(folder, pages[full], results.partial, full=full, redact=redact)
    console.advance("report", "tables and figures")
    return folder / PAGES[full]


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


def _write_files(
    folder: Path, chapters: Sequence[Chapter], partial: str, *, full: bool, redact: bool
) -> None:
    """Tables and figures, and nothing that an earlier report left."""
    for part in ("tables", "figures"):
        shutil.rmtree(folder / part, ignore_errors=True)

    def fit(table: Table) -> Table:
        table = table.marked(partial) if partial else table
        return table.mapped(redacted) if redact else table

    for table in pooled([(finished.section, finished.brief) for finished in chapters]):
        write_bytes(folder / "tables" / f"{table.name}.csv", to_csv(fit(table)).encode())
    for finished in chapters:
        for table in finished.all_tables if full else ():
            write_table(fit(table), folder / "tables")
        for figure in finished.all_figures:
            path, svg = folder / "figures" / f"{figure.name}.svg", figure.svg
            if redact and redacted(svg) != svg:
                svg = redacted(svg)  # and no picture of pixels, in which the path would stand
            else:
                write_bytes(path.with_suffix(".png"), figure.png)
            write_bytes(path, svg.encode())


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
