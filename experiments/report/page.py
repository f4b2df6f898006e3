"""The report of a run: one HTML page, answer first and background in folds; tables; figures."""

from __future__ import annotations

import html
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from experiments.analysis.findings import Findings, Problem, Result, TaskFindings
from experiments.analysis.summary import metric_classes
from experiments.console import Console
from experiments.preview.manuals import CATALOGS
from experiments.report import templates
from experiments.report.beyond import inferences_of
from experiments.report.chapter import Chapter, chapter_of
from experiments.report.details import was_refused
from experiments.report.footer import footer, glossary, metric_terms
from experiments.report.naming import (
    attack_name,
    bare_name,
    null_of,
    number,
    reached,
    shown_metrics,
    unit_of,
    useful,
)
from experiments.report.run_results import RunResults, read_results
from experiments.report.statements import certainty, overall, word_of
from experiments.report.tables import Table, to_csv
from experiments.report.templates import SCRIPT
from experiments.wording.catalogue import say, sentence
from experiments.wording.names import defense_name, family, short_options, title
from experiments.wording.prose import capital, counted, listed
from experiments.wording.threat import ThreatModel, shared_protocol, withheld
from fedsim.records import PRIOR_ONLY, STATUSES
from fedsim.store.files import write_bytes
from fedsim.store.plain_files import make_private
from fedsim.visible import redacted

if TYPE_CHECKING:
    from jinja2 import Environment


TEMPLATES = ("report.html.j2", "chapter.html.j2", "lineup.html.j2", "attacks.html.j2")


def render(
    results: RunResults,
    chapters: Sequence[Chapter],
    *,
    redact: bool,
    folder: str,
) -> str:
    """The page.

    Args:
        results: of the run.
        chapters: what to say.
        redact: say that private examples were left out.
        folder: name of the one that the page stands in.
    """
    pages, classes = environment(), metric_classes()
    common, apart = simulated(chapters)
    front = next((picture for chapter in chapters for picture in chapter.pictures), None)
    part = pages.get_template("chapter.html.j2")
    body = "\n".join(
        part.render(chapter=chapter, front=front, simulated=apart[i], redact=redact)
        for i, chapter in enumerate(chapters)
    )
    sections = [chapter.section for chapter in chapters]
    judged = [chapter.section for chapter in chapters if chapter.judged]
    top: dict[str, Any] = {
        "who": attackers(chapters),
        "overall": overall(judged) if judged else [say("overall.no_rows")],
        "certainty": certainty(judged, {seed for chapter in chapters for seed in chapter.seeds})
        if judged
        else say("sure.audits"),
    }
    costing = [(chapter.heading, chapter.costs) for chapter in chapters]
    text = f"{_visible(body)} {' '.join(map(str, top.values()))}"
    shown = {metric for section in sections for metric in shown_metrics(section)}
    scored = [result for section in sections for result in section.results]
    said = CATALOGS["attacks"]()
    attacked = {result.attack for result in scored} - {PRIOR_ONLY}
    return templates.laid_out(
        pages,
        "report.html.j2",
        SCRIPT,
        front=front,
        body=Markup(body),  # rendered with escaping above
        chapters=chapters,
        costing=[(heading, said) for heading, said in costing if said],
        threats=threats(chapters),
        simulated=common,
        terms=[
            *glossary(text),
            *((title(name), said[name].replace("``", "")) for name in said if name in attacked),
            *metric_terms(classes, shown),
        ],
        **top,
        name=results.name,
        folder=folder,
        partial=results.partial,
        **footer(results.provenance),
        limited=results.limits is not None,
    )


def _visible(body: str) -> str:
    """The text of HTML, without its tags and styles."""
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", body, flags=re.DOTALL))


def environment() -> Environment:
    """The templates of a run's page."""
    pages = templates.environment("experiments.report", *TEMPLATES)
    pages.filters["capital"] = lambda said: capital(str(said))
    pages.globals |= {"statuses": STATUSES} | {
        each.__name__: each
        for each in (
            *(attack_name, bare_name, null_of, number, reached, useful, unit_of, shown_metrics),
            *(defense_name, family, short_options, word_of, outcomes, by_place, inferences_of),
        )
    }
    return pages


Lines = Sequence[tuple[str, str]]


def attackers(chapters: Sequence[Chapter]) -> str:
    """Who attacked, with what, and what was kept from the attacker."""
    attacks = [
        result
        for chapter in chapters
        for result in chapter.section.results
        if not result.is_control and result.attack != PRIOR_ONLY
    ]
    names = dict.fromkeys(title(result.attack) for result in attacks if not was_refused(result))
    refused = dict.fromkeys(title(r.attack) for r in attacks if title(r.attack) not in names)
    hidden = withheld([chapter.threat for chapter in chapters])
    foreign = any(chapter.threat.foreign for chapter in chapters)
    knew = "did not know" if foreign else "was not told"
    parts = (
        sentence("threat.who"),
        f"It {knew} {', nor '.join(hidden)}." if hidden else "",
        f"It ran {counted(len(names), 'attack')}: {listed(list(names))}." if names else "",
        f"{listed([capital(name) for name in refused])} could attack nothing." if refused else "",
    )
    return " ".join(filter(None, parts))


def threats(chapters: Sequence[Chapter]) -> list[tuple[str, ThreatModel]]:
    """The cards that differ in what the server was told, each with the tasks that it is of."""
    groups: dict[tuple[tuple[str, ...], ...], list[Chapter]] = {}
    # A task of pictures has fewer facts to withhold, such as no token count.
    for chapter in chapters:
        groups.setdefault((chapter.threat.granted, chapter.threat.varied), []).append(chapter)
    cards = []
    for group in groups.values():
        hidden = withheld([chapter.threat for chapter in group])
        whose = "; ".join(chapter.heading for chapter in group) if len(groups) > 1 else ""
        cards.append((whose, replace(group[0].threat, withheld=hidden)))
    return cards


def simulated(chapters: Sequence[Chapter]) -> tuple[Lines, list[Lines]]:
    """What was simulated alike in all chapters, and what is each one's own."""
    common = shared_protocol([chapter.threat for chapter in chapters]) if len(chapters) > 1 else ()
    return common, [[x for x in chapter.threat.protocol if x not in common] for chapter in chapters]


def by_place(section: TaskFindings) -> list[list[Result]]:
    """The results of each defense and setting, in order."""
    return [list(some) for _, some in groupby(section.results, key=lambda result: result.place)]


def outcomes(result: Result) -> list[tuple[str, int, str]]:
    """(status, jobs, reason) for each reason, those that differ in their numbers as one."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in sorted(result.problems, key=lambda problem: (-problem.jobs, problem.reason)):
        alike = problem.status, re.sub(r"\d+", "#", problem.reason)
        groups.setdefault(alike, []).append(problem)
    return [
        (
            status,
            sum(problem.jobs for problem in group),
            ("for example: " if len(group) > 1 else "") + group[0].reason,
        )
        for (status, _), group in groups.items()
    ]


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
        chapter_of(number, section, results.of(section.cells))
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
    for table in pooled(
        [
            (chapter.section, [*chapter.tables.values(), *chapter.extras.values()])
            for chapter in chapters
        ]
    ):
        fit = table.more(**{"jobs run": partial}) if partial else table
        fit = fit.mapped(redacted) if redact else fit
        write_bytes(folder / "tables" / f"{table.name}.csv", to_csv(fit).encode())
    for figure in (
        figure for chapter in chapters for figure in (*chapter.pictures, *chapter.figures)
    ):
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
