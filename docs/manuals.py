"""The reference pages, made from the classes, the experiment file's sections and the commands."""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer.main
from click import Argument, Command, Context, Group

from experiments.cli import app
from experiments.plan.config import ExperimentConfig
from experiments.preview.describe import Option, manual
from experiments.preview.manuals import CATALOGS
from experiments.stages.coverage import Coverage
from experiments.wording.names import title
from fedsim.config.section import ConfigSection
from fedsim.records import JobRecord, ScoreRow, SimulationRecord, UtilityRow
from fedsim.store.capture import CaptureRecord
from fedsim.store.rows import columns
from fedsim.store.truth import TruthRecord
from fedsim.tasks.base import TaskSpec

_BOUND = re.compile(r"\b(?:at least|above|at most|below) \S+")
_MODULE = re.compile(r"\b(?:\w+\.)+(?=[A-Z])")
_ATTRIBUTE = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
_REST = re.compile(r"(?<!`)``(?!`)")
SECTIONS = (
    "experiment",
    "task",
    "task.filter",
    "auxiliary",
    "federation",
    "capture",
    "probes",
    "candidates",
    "server_knows",
    "attack_stage",
    "verdict",
)
RECORDS: dict[str, type[Any]] = {
    "scores.parquet": ScoreRow,
    "utility.parquet": UtilityRow,
    "coverage.parquet": Coverage,
    "captures/round-0001/client-0003.json": CaptureRecord,
    "captures/task.json": TaskSpec,
    "guesses/<attack>/round-0001-client-0003.json": JobRecord,
    "truth/round-0001-client-0003.json": TruthRecord,
    "simulation.json": SimulationRecord,
}


@dataclass(frozen=True)
class Page:
    """A generated page.

    Attributes:
        path: below ``docs/``.
        title: as in the navigation.
        text: Markdown.
    """

    path: str
    title: str
    text: str


def pages() -> Iterator[Page]:
    """Every generated page, in the order of the navigation."""
    yield records()
    yield experiment_file()
    yield command_line()
    yield from shelf("attacks")
    yield from shelf("defenses")
    yield metrics()
    yield lists()


def shelf(kind: str) -> Iterator[Page]:
    """An overview of the attacks or the defenses, and a page for each."""
    said = CATALOGS[kind]()
    rows = [
        f"| [{title(name)}]({name}.md) | `{name}` | {cell(text)} |" for name, text in said.items()
    ]
    overview = "\n".join(["| Title | Name | What it does |", "| --- | --- | --- |", *rows])
    head = f"# {kind.capitalize()}\n\n"
    yield Page(f"reference/{kind}/index.md", "Overview", f"{head}{overview}\n")
    for name in said:
        yield Page(f"reference/{kind}/{name}.md", title(name), entry(name, "#"))


def entry(name: str, marks: str) -> str:
    """One attack, defense, metric or section: what it is, and its options."""
    known = manual(name)
    heading = title(name) if name not in SECTIONS else f"[{name}]"
    parts = [f"{marks} {heading}", f"`{name}`: {known.place}.", markdown(known.about)]
    if known.options:
        parts.append(options(known.options))
    else:
        parts.append("It has no options.")
    return "\n\n".join(parts) + "\n"


def options(known: tuple[Option, ...]) -> str:
    """The table of options: type, default, range and meaning."""
    lines = ["| Option | Type | Default | Range | Meaning |", "| --- | --- | --- | --- | --- |"]
    for option in known:
        bounds = " and ".join(_BOUND.findall(option.type))
        kind = _BOUND.sub("", option.type).replace(" and ", " ").strip()
        default = "required" if option.required else _default(option.default)
        cells = (f"`{option.name}`", kind, default, bounds, markdown(option.meaning))
        lines.append("| " + " | ".join(cell(text) or " " for text in cells) + " |")
    return "\n".join(lines)


def _default(value: object) -> str:
    return "not set" if value is None else f"`{json.dumps(value)}`"


def experiment_file() -> Page:
    """All sections of the experiment file."""
    assert all(name == "experiment" or _section(name) for name in SECTIONS)
    head = (
        "# The experiment file\n\n"
        "An experiment is one TOML file. Unknown keys and wrong values are errors that name the "
        "place and the fix. Every option below can also be set on the command line, as "
        "`--set federation.rounds=5`, and every section is described by "
        "`fedsim describe SECTION`.\n"
    )
    body = "\n".join(entry(name, "##") for name in SECTIONS)
    return Page("reference/experiment.md", "Experiment file", f"{head}\n{body}")


def _section(name: str) -> bool:
    cls: Any = ExperimentConfig
    for part in name.split("."):
        field = cls.model_fields[part]
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        cls = next(kind for kind in kinds if isinstance(kind, type) and _is_section(kind))
    return True


def _is_section(kind: type) -> bool:
    return issubclass(kind, ConfigSection)


def commands() -> dict[str, Command]:
    """The subcommands of ``fedsim`` by name."""
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    context = Context(group)
    known = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in known.items() if command is not None}


def command_line() -> Page:
    """Every command with its arguments and options."""
    text = [
        "# Command line\n",
        "Every command prints one line, `<where>: <what is wrong>. <what to do>.`, for a user's "
        "mistake. Exit codes: 0 done, 1 some jobs failed, 2 a mistake in the command or the "
        "experiment, 130 stopped by Ctrl-C, 143 by SIGTERM.\n",
    ]
    for name, command in commands().items():
        context = Context(command, info_name=f"fedsim {name}")
        usage = " ".join([f"fedsim {name}", *command.collect_usage_pieces(context)])
        text += [f"## fedsim {name}\n", f"```text\n{usage}\n```\n", f"{command.help or ''}\n"]
        lines = ["| Parameter | Default | Meaning |", "| --- | --- | --- |"]
        for param in command.params:
            record = None if isinstance(param, Argument) else param.get_help_record(context)
            spelled = param.make_metavar(context) if record is None else record[0]
            shown = (
                " "
                if param.default in {None, ""}
                else f"`{json.dumps(param.default, default=str)}`"
            )
            said = getattr(param, "help", "") or ""
            lines.append(f"| `{spelled}` | {shown} | {cell(said)} |")
        text.append("\n".join(lines) + "\n")
    return Page("reference/command-line.md", "Command line", "\n".join(text))


def metrics() -> Page:
    """All metrics on one page."""
    body = "\n".join(entry(name, "##") for name in CATALOGS["metrics"]())
    head = "# Metrics\n\nOne value for each private example, after guesses are matched to truth.\n"
    return Page("reference/metrics.md", "Metrics", f"{head}\n{body}")


def lists() -> Page:
    """Models, data sets and shipped experiments."""
    parts = ["# Models, data sets and shipped experiments\n"]
    for kind in ("models", "datasets", "experiments"):
        entries = CATALOGS[kind]()
        rows = [f"| `{name}` | {cell(sentence)} |" for name, sentence in entries.items()]
        heading = {"datasets": "Data sets"}.get(kind, kind.capitalize())
        table = "\n".join(["| Name | What it is |", "| --- | --- |", *rows])
        parts.append(f"## {heading}\n\n{table}\n")
    return Page("reference/lists.md", "Models, data sets, experiments", "\n".join(parts))


def records() -> Page:
    """The columns of the Parquet files and the fields of the JSON records."""
    parts = ["# Columns and records\n"]
    for path, record in RECORDS.items():
        about, _, listed = (inspect.getdoc(record) or "").partition("\n\nAttributes:\n")
        meanings = dict(_ATTRIBUTE.findall(inspect.cleandoc(f"\n{listed}")))
        parts += [f"## `{path}`\n", f"{markdown(about)}\n"]
        explained = bool(meanings)
        lines = ["| Field | Type |", "| --- | --- |"]
        if explained:
            lines = ["| Field | Type | Meaning |", "| --- | --- | --- |"]
        for name, hint in columns(record).items():
            kind = inspect.formatannotation(hint).replace("typing.", "")
            meaning = cell(markdown(meanings.get(name, ""))) or " "
            kind = _MODULE.sub("", kind).replace("|", "\\|")
            lines.append(f"| `{name}` | `{kind}` |" + f" {meaning} |" * explained)
        parts.append("\n".join(lines) + "\n")
    return Page("reference/rows.md", "Columns and records", "\n".join(parts))


def cell(text: str) -> str:
    """On one line, with no bar that would end the cell."""
    return " ".join(escaped(text).split()).replace("|", "\\|")


def markdown(text: str) -> str:
    """A docstring's double backticks as Markdown's single ones."""
    return escaped(_REST.sub("`", text))


def escaped(text: str) -> str:
    """With angle brackets as they are, which HTML would swallow outside of code."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
