"""The page of a run as HTML: answer first, then each task, then the background behind folds."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.analysis.findings import Problem, Result, TaskFindings
from experiments.analysis.summary import metric_classes
from experiments.preview.catalog import CATALOGS
from experiments.report import templates
from experiments.report.answers import certainty, overall
from experiments.report.chapter import Chapter
from experiments.report.doubts import was_refused
from experiments.report.figures import INK
from experiments.report.footer import cost, cover, provenance_lines
from experiments.report.gallery import data_uri, mark, words
from experiments.report.glossary import glossary, metric_terms
from experiments.report.naming import (
    attack_label,
    attack_name,
    bare_name,
    shown_metrics,
    unit_of,
)
from experiments.report.numbers import label_accuracy, null_of, number, reached, useful
from experiments.report.reasons import phrases
from experiments.report.run_results import RunResults
from experiments.report.statements import shade, word_of
from experiments.report.tables import text_of
from experiments.report.templates import Binder
from experiments.report.verdict_tables import rule
from experiments.wording.defense_names import NO_DEFENSE, defense_name, family, short_options
from experiments.wording.names import duration, natural, options, show, title, utility_unit
from experiments.wording.prose import capital, counted, listed
from experiments.wording.threat import (
    ATTACKER,
    OUT_OF_SCOPE,
    WHO,
    ThreatModel,
    shared_protocol,
    withheld,
)
from fedsim.records import PRIOR_ONLY, STATUSES, shown
from fedsim.redaction import redacted

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = (
    *(
        "report.html.j2",
        "chapter.html.j2",
        "lineup.html.j2",
        "attacks.html.j2",
        "full.html.j2",
        "external.html.j2",
    ),
    *("macros.html.j2", "report.css"),
)
SCRIPT = files("experiments.report").joinpath("report.js").read_text("utf-8")
"""The one script that the page's security policy lets run, by its hash."""

_NO_ROWS = "No attack tried to rebuild rows; what else was learned stands with each defense."
_SURE = "Brackets hold 95 % intervals over clients, bounds on epsilon hold with 95 % confidence."


def render(
    results: RunResults,
    chapters: Sequence[Chapter],
    *,
    full: bool,
    redact: bool,
    folder: str,
) -> str:
    """The page.

    Args:
        results: of the run.
        chapters: what to say.
        full: show every table and guess, and explain every term.
        redact: say that private examples were left out.
        folder: name of the one that the page stands in.
    """
    pages, classes, provenance = environment(), metric_classes(), results.provenance
    common, apart = simulated(chapters)
    front = next((picture for chapter in chapters for picture in chapter.pictures), None)
    part = pages.get_template("chapter.html.j2")
    body = "\n".join(
        part.render(chapter=chapter, front=front, simulated=apart[i], full=full, redact=redact)
        for i, chapter in enumerate(chapters)
    )
    sections = [chapter.section for chapter in chapters]
    judged = [chapter.section for chapter in chapters if chapter.judged]
    top = {
        "who": attackers(chapters),
        "overall": overall(judged) if judged else _NO_ROWS,
        "certainty": certainty(judged, {seed for chapter in chapters for seed in chapter.seeds})
        if judged
        else _SURE,
    }
    costing = [(chapter.heading, chapter.costs) for chapter in chapters]
    text = f"{_visible(body)} {' '.join(top.values())}"
    shown = {metric for section in sections for metric in shown_metrics(section)}
    scored = [result for section in sections for result in section.results]
    metrics = {metric for result in scored for metric in result.leakage} if full else shown
    said = CATALOGS["attacks"]()
    attacked = {result.attack for result in scored} - {PRIOR_ONLY}
    return pages.get_template("report.html.j2").render(
        front=front,
        body=Markup(body),  # rendered with escaping above
        chapters=chapters,
        costing=[(heading, said) for heading, said in costing if said],
        full=full,
        script=Markup(SCRIPT),  # ours
        script_hash=b64encode(sha256(SCRIPT.encode()).digest()).decode(),
        attacker=ATTACKER,
        out_of_scope=OUT_OF_SCOPE,
        threats=threats(chapters),
        simulated=common,
        terms=[
            *glossary(text, full=full),
            *((title(name), said[name].replace("``", "")) for name in said if name in attacked),
            *metric_terms(classes, metrics, full=full),
        ],
        attacks=sorted({(result.attack, result.attack_options) for result in scored}),
        defenses=sorted(
            {
                (defense_name(result.defense, result.defense_options), result.defense_options)
                for result in scored
            },
            key=lambda pair: natural(pair[0]),
        ),
        **top,
        name=results.name,
        folder=folder,
        partial=results.partial,
        cover=[(key, redacted(value)) for key, value in cover(provenance)],
        cost=cost(provenance),
        provenance=[
            (key, redacted(value)) for key, value in provenance_lines(provenance, full=full)
        ],
        experiment=redacted(results.experiment),
        limited=results.limits is not None,
    )


def _visible(body: str) -> str:
    """The text of HTML, without its tags and styles."""
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", body, flags=re.DOTALL))


def environment() -> Environment:
    """The templates of a run's page, whose expressions are escaped."""
    classes = metric_classes()
    pages = templates.environment(dict.fromkeys(TEMPLATES, "experiments.report"))
    pages.filters["bound"] = Binder()
    pages.globals |= {
        "attack_label": attack_label,
        "attack_name": attack_name,
        "bare_name": bare_name,
        "null_of": null_of,
        "number": number,
        "reached": reached,
        "rule": rule,
        "useful": useful,
        "data_uri": data_uri,
        "inline": lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        "is_text": lambda value: isinstance(value, str),
        "text_of": text_of,
        "mark": mark,
        "words": words,
        "metric_class": classes.get,
        "defense_name": defense_name,
        "family": family,
        "options": options,
        "short_options": short_options,
        "shown_metrics": shown_metrics,
        "statuses": STATUSES,
        "shown": shown,
        "scope": scope,
        "shade": shade,
        "phrases": phrases,
        "show": show,
        "outcomes": outcomes,
        "label_accuracy": label_accuracy,
        "trained": trained,
        "title": title,
        "unit_of": unit_of,
        "word_of": word_of,
        "utility_unit": utility_unit,
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
        WHO,
        f"It {knew} {', nor '.join(hidden)}." if hidden else "",
        f"It ran {counted(len(names), 'attack')}: {listed(list(names))}." if names else "",
        f"{listed([capital(name) for name in refused])} could attack nothing." if refused else "",
    )
    return " ".join(filter(None, parts))


def threats(chapters: Sequence[Chapter]) -> list[tuple[str, ThreatModel]]:
    """The cards that differ in what the server was told, each with the tasks that it is of."""
    groups: dict[tuple[tuple[str, ...], ...], list[Chapter]] = {}
    for (
        chapter
    ) in chapters:  # a task of pictures has fewer facts to withhold, such as no token count
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


def scope(section: TaskFindings) -> str:
    """Who was attacked by what, and what became of the jobs, in a sentence."""
    attacked = [
        result
        for result in section.results
        if result.control == "none" and result.attack != PRIOR_ONLY
    ]
    attacks = {attack_label(section, result.attacker) for result in attacked}
    settings = {result.setting for result in attacked}
    defended = {result.place[1:] for result in attacked if result.defense != "none"}
    undefended = " and none" if any(result.defense == "none" for result in attacked) else ""
    under = counted(len(defended), "defense") + undefended if defended else NO_DEFENSE
    jobs = {status: sum(result.jobs[status] for result in attacked) for status in STATUSES}
    became = ", ".join(f"{count:,} {shown(status)}" for status, count in jobs.items() if count)
    became = "all done" if jobs["done"] == sum(jobs.values()) else became
    return (
        f"{counted(section.victims, 'private example')} of {counted(section.clients, 'client')}, "
        f"attacked under {under}{f' in {len(settings)} settings' if len(settings) > 1 else ''} by "
        f"{counted(len(attacks), 'attack')}: {counted(sum(jobs.values()), 'job')}, {became}, "
        f"{duration(sum(result.seconds for result in attacked))} of work in all."
    )


def trained(section: TaskFindings) -> str:
    """What to know of the utility: how many trainings there were, and what came before them."""
    name = section.utility_name
    if name is None:
        return ""
    alone = max(point.seeds for point in section.utility) == 1
    start = {
        point.values[name] for point in section.utility if point.round == 0 and name in point.values
    }
    parts = [
        "Utility is that of one training under each defense: small changes may be chance."
        if alone
        else "",
        f"Before training, {title(name)} was {show(start.pop(), utility_unit(name))}."
        if len(start) == 1
        else "",
    ]
    return " ".join(filter(None, parts))


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
