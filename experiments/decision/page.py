"""The files of an answer: JSON, a page with one table and one picture, and the chosen defense."""

from __future__ import annotations

from importlib.resources import files
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
from experiments.report.tables import Number, text_of
from fedsim.files import write_bytes, write_json
from fedsim.visible import visible


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
    from jinja2 import DictLoader, Environment, StrictUndefined

    sources = {
        "calibration.html.j2": files("experiments.decision"),
        "report.css": files("experiments.report"),
    }
    templates = {name: at.joinpath(name).read_text("utf-8") for name, at in sources.items()}
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["number"] = lambda value: isinstance(value, int | Number)
    return environment.get_template("calibration.html.j2").render(
        answer=answer,
        headline=headline(answer),
        goals=[goal(target) for target in parse_targets(answer.question.hold)],
        table=table(answer),
        figure=drawn,
        inline=lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        notes=list(notes(answer)),
        toml=toml,
        targets=[target.text() for target in parse_targets(answer.question.hold)],
        tried=[answer.undefended, *(one for found in answer.families for one in found.tried)],
        measured=measured,
        cell=text_of,
    )


def _shown(value: object) -> object:
    """Names of attacks and defenses may be a stranger's."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
