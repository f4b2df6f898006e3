"""The report of a run: one page that opens from disk, tables, figures and ``summary.json``."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.analysis.findings import Findings, Problem, TaskFindings
from experiments.analysis.summary import summarise
from experiments.console import Console
from experiments.plan.folder import read_provenance, read_rules, run_name
from experiments.report.brackets import bounded_by, budgets
from experiments.report.chapter import Chapter, chapter
from experiments.report.footer import cost, cover, provenance_lines
from experiments.report.page import render
from experiments.report.tables import Table, to_csv, write_table
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import read_gallery
from experiments.stages.progress import scored_progress
from experiments.stages.rows import read_rows
from experiments.stages.updates import UpdateRow
from experiments.wording.names import title
from fedsim.cell import CellConfig
from fedsim.errors import StoreError
from fedsim.files import read_record, read_text, write_bytes
from fedsim.plain_files import make_private
from fedsim.records import ScoreRow, UtilityRow
from fedsim.redaction import redacted

WHERE = ("task", "dataset", "model", "protocol")

PAGES = {False: "index.html", True: "full.html"}
"""In full or not -> the file of the page."""


def write_report(
    run: Path, *, redact: bool = False, full: bool = False, console: Console | None = None
) -> Path:
    """Write ``summary.json`` and ``report/`` of a run folder; returns the page.

    The page holds private rows as the gallery does, and is its owner's alone as well.

    Args:
        run: the run folder.
        redact: write ``redacted/`` instead, which may be passed on: without private examples, the
            reasons that attacks gave, and the folders of this machine.
        full: write ``full.html``, too, with every table and guess, and each task's tables as CSV,
            Markdown and LaTeX beside the few that pool all tasks; returns that page.
        console: where progress is shown; nowhere if not given.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    console = console or Console(quiet=True)
    console.expect("report", 3)
    provenance = read_provenance(run)
    partial = str(scored_progress(run))
    footer = {
        "cost": cost(provenance),
        "cover": [(k, redacted(v)) for k, v in cover(provenance)],
        "partial": partial,
        "experiment": redacted(read_text(run / "experiment.toml")),
        "limited": (run / "limits.json").exists(),
    }
    if not (run / "signals.parquet").is_file():  # read where the chapters show it
        raise StoreError(f"{run / 'signals.parquet'}: the file is missing. Run fedsim score again.")
    rows = read_rows(run / "scores.parquet", ScoreRow)
    utility = read_rows(run / "utility.parquet", UtilityRow)
    cells = {
        name: read_record(run / name / "cell.json", CellConfig)
        for name in sorted({row.cell for row in rows} | {row.cell for row in utility})
    }
    coverage = read_rows(run / "coverage.parquet", Coverage)
    updates = read_rows(run / "updates.parquet", UpdateRow)
    membership = run / "membership.parquet"
    limits = budgets(run, cells)
    summary = summarise(
        rows,
        utility,
        cells,
        rules=read_rules(run),
        membership=read_rows(membership, ScoreRow) if membership.exists() else (),
        bounded=bounded_by(limits),
    )
    write_bytes(run / "summary.json", canonical(summary))
    console.advance("report", "numbers")
    sections = (
        [_unexplained(section) for section in summary.sections] if redact else summary.sections
    )
    shown = [] if redact else read_gallery(run)
    folder = run / ("redacted" if redact else "report")
    if not redact:
        make_private(folder)
    for whole in (False, True) if full else (False,):
        chapters = [
            chapter(number, section, run, cells, limits, coverage, updates, shown, full=whole)
            for number, section in enumerate(sections, 1)
        ]
        body = render(
            rows,
            chapters,
            full=whole,
            redact=redact,
            name=run_name(run),
            folder=folder.name,
            provenance=[(k, redacted(v)) for k, v in provenance_lines(provenance, full=whole)],
            **footer,
        )
        page = folder / PAGES[whole]
        write_bytes(page, (redacted(body) if redact else body).encode(), private=not redact)
    if not full:
        (folder / PAGES[True]).unlink(missing_ok=True)  # it would be of an earlier report
    console.advance("report", "page")
    _write_files(folder, chapters, partial, full=full, redact=redact)
    console.advance("report", "tables and figures")
    return page


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


def canonical(summary: Findings) -> bytes:
    """Sealed strict JSON with sorted keys: equal summaries give equal bytes."""
    text = json.dumps(json.loads(summary.model_dump_json()), sort_keys=True)
    ordered = Findings.model_validate_json(text)  # as a reader has it, whose hash must be the same
    data = json.loads(ordered.sealed().model_dump_json())
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


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
