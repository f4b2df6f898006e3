"""The files of an answer: JSON, a page with one table and one picture, and the chosen defense."""

from __future__ import annotations

from pathlib import Path

import tomli_w
from markupsafe import Markup

from experiments.decision.answer import Answer
from experiments.decision.picture import picture
from experiments.decision.plan import chosen
from experiments.decision.question import FOLDER
from experiments.decision.targets import parse_targets
from experiments.decision.wording import goal, headline, measured, notes, table
from experiments.plan.config import ExperimentConfig
from experiments.report.figures import INK, Figure
from experiments.report.tables import text_of
from experiments.report.templates import render
from fedsim.files import write_bytes, write_json


def write_answer(answer: Answer, experiment: ExperimentConfig, root: Path) -> Path:
    """Write the files below the run folder; returns the path of the page."""
    folder = root / FOLDER
    drawn = picture(answer)
    write_json(folder / "answer.json", answer)
    write_bytes(folder / "frontier.svg", drawn.svg.encode())
    body = ""
    if answer.chosen is not None:
        defense = answer.families[answer.chosen].defense
        assert defense is not None
        body = tomli_w.dumps({"defenses": [defense]})
        whole = chosen(experiment, defense).model_dump(mode="json", exclude_none=True)
        write_bytes(folder / "chosen.toml", tomli_w.dumps(whole).encode())
    else:
        (folder / "chosen.toml").unlink(missing_ok=True)
    page = folder / "index.html"
    write_bytes(page, _render(answer, drawn, body).encode())
    return page


def _render(answer: Answer, drawn: Figure, toml: str) -> str:
    return render(
        "experiments.decision",
        "calibration.html.j2",
        answer=answer,
        headline=headline(answer),
        goals=[goal(target) for target in parse_targets(answer.question.hold)],
        table=table(answer),
        figure=drawn,
        inline=lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        notes=list(notes(answer)),
        toml=toml,
        targets=[target.text() for target in parse_targets(answer.question.hold)],
        tried=[answer.undefended, *(trial for family in answer.families for trial in family.tried)],
        measured=measured,
        cell=text_of,
    )
