"""The page of a run as HTML: answer first, then each task, then the background behind folds."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.analysis.summary import metric_classes
from experiments.preview.catalog import CATALOGS
from experiments.report import templates
from experiments.report.answers import certainty, overall
from experiments.report.chapter import Chapter
from experiments.report.costs import costs
from experiments.report.figures import INK
from experiments.report.gallery import data_uri, mark, words
from experiments.report.glossary import glossary, metric_terms
from experiments.report.naming import attack_label, attack_name, shown_metrics, unit_of
from experiments.report.numbers import label_accuracy, null_of, number, reached, useful
from experiments.report.phrases import attackers, outcomes, scope, simulated, threats, trained
from experiments.report.reasons import phrases
from experiments.report.statements import shade, word_of
from experiments.report.tables import text_of
from experiments.report.templates import Binder
from experiments.report.verdict_tables import rule
from experiments.wording.defense_names import defense_name, family, short_options
from experiments.wording.names import natural, options, show, title, utility_unit
from experiments.wording.threat import ATTACKER, OUT_OF_SCOPE
from fedsim.records import PRIOR_ONLY, STATUSES, ScoreRow, shown

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
    rows: Sequence[ScoreRow],
    chapters: Sequence[Chapter],
    *,
    full: bool,
    redact: bool,
    **values: object,
) -> str:
    """The page.

    Args:
        rows: every score.
        chapters: what to say.
        full: show every table and guess, and explain every term.
        redact: say that private examples were left out.
        values: what else the template needs.
    """
    pages, classes = environment(), metric_classes()
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
    costing = [(chapter.heading, costs(chapter.section)) for chapter in chapters]
    text = f"{_visible(body)} {' '.join(top.values())}"
    shown = {metric for section in sections for metric in shown_metrics(section)}
    metrics = {row.metric for row in rows} if full else shown
    said = CATALOGS["attacks"]()
    attacked = dict.fromkeys(row.attack for row in rows if row.attack != PRIOR_ONLY)
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
        attacks=sorted({(row.attack, row.attack_options) for row in rows}),
        defenses=sorted(
            {(defense_name(*key), key.defense_options) for key in {r.defense_key for r in rows}},
            key=lambda pair: natural(pair[0]),
        ),
        **top,
        **values,
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
