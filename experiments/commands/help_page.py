"""The page of ``fedsim --help``, and its commands, each imported as it is called."""

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
import typer.core
import typer.main

from fedsim.config.build import installed, nearest
from fedsim.errors import ConfigError, message_of

GROUP = "fedsim.commands"
EXTRAS = {
    "watch": "experiments.extras.watch.watch",
    "evidence": "experiments.extras.evidence.command",
    "seal": "experiments.extras.arena.seal",
    "submit": "experiments.extras.arena.submit",
    "grade": "experiments.extras.arena.grade",
    "trees": "experiments.extras.trees.trees",
}
"""Command -> its module, whose folder may be deleted: then the command is gone, and no more."""
_PLACES = {
    **dict.fromkeys(("simulate", "attack", "score", "report"), "experiments.commands.run"),
    "attest": "experiments.attest.command",
    **EXTRAS,
}
"""Command -> its module, where that has not its name."""


def shipped_extras() -> list[str]:
    """The extras that are on the disk."""
    return [name for name, module in EXTRAS.items() if _is_there(module)]


def shipped_command(name: str) -> click.Command:
    """A command of the core, or a shipped extra."""
    module = import_module(_module(name))
    return _command(name, getattr(module, name, None) or getattr(module, f"{name}_"))


def shipped_sentence(name: str) -> str:
    """What such a command does, read off its source: nothing that it needs is imported."""
    spec = find_spec(_module(name))
    source = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    sentence = ast.get_docstring(functions.get(name) or functions[f"{name}_"])
    return str(sentence).split("\n\n")[0]


def _module(name: str) -> str:
    return _PLACES.get(name, f"experiments.commands.{name}")


def _is_there(module: str) -> bool:
    package = module.rpartition(".")[0]
    return (not package or _is_there(package)) and find_spec(module) is not None


def added_names() -> list[str]:
    """Commands that other packages name; none is loaded."""
    return sorted({point.name for point in installed(GROUP)})


def added_command(name: str) -> click.Command | None:
    """A command of another package: a function with typer's parameters, or a click command.

    Raises:
        ConfigError: it cannot be loaded.
    """
    point = next((point for point in installed(GROUP) if point.name == name), None)
    if point is None:
        return None
    loaded = _load(point)
    return loaded if isinstance(loaded, click.Command) else _command(name, loaded)


def _command(name: str, function: Callable[..., Any]) -> click.Command:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name)(function)
    return typer.main.get_command(app)


def _load(point: EntryPoint) -> Any:  # noqa: ANN401
    package = point.dist.name if point.dist else "the package"
    try:
        loaded = point.load()
    except Exception as error:
        fault = f"{type(error).__name__}: {message_of(error)}"
        raise ConfigError(
            f"{GROUP}: {point.name!r} of {package} cannot be loaded ({fault}). Mend or uninstall "
            "it."
        ) from None
    if not callable(loaded):
        raise ConfigError(
            f"{GROUP}: {point.name!r} of {package} is {loaded!r}, and no function. Mend or "
            "uninstall it."
        )
    return loaded


CHAPTERS: Mapping[str, tuple[str, ...]] = {
    "Run": ("run", "show", "simulate", "attack", "score", "prepare", "prior"),
    "Report": ("report", "open", "ls", "rm"),
    "Judge": ("calibrate", "check", "diff", "doctor", "limits", "audit"),
    "Captures of other applications": ("attest", "init"),
    "Look up": ("list", "describe", "schema", "new"),
    "Extras": tuple(shipped_extras()),
}
"""The core's commands by what they are for; attack, score and report take captures as well."""
_SHIPPED = [name for names in CHAPTERS.values() for name in names]


class Chapters(typer.core.TyperGroup):
    """A group of commands that lists them under the headings of ``CHAPTERS``, and then the rest."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **options)
        self.commands = {name: click.Command(name) for name in _SHIPPED}  # to suggest names

    @property
    def chapters(self) -> dict[str, tuple[str, ...]]:
        """All headings with their commands; extras are those that are installed, too."""
        more = (name for name in added_names() if name not in _SHIPPED)
        known = {**CHAPTERS, "Extras": (*CHAPTERS["Extras"], *more)}
        return {chapter: names for chapter, names in known.items() if names}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of their chapters."""
        del ctx
        return [name for names in self.chapters.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command whose numbers are finite: a range lets NaN through."""
        command = shipped_command(name) if name in _SHIPPED else added_command(name)
        for parameter in command.params if command else ():
            if isinstance(parameter.type, click.types.FloatParamType):
                parameter.callback = parameter.callback or _finite
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list a chapter; click alone would cut sentences at the terminal's width."""
        width = max(map(len, self.list_commands(ctx)))
        for chapter, names in self.chapters.items():
            rows = [(f"{name:<{width}}", self._sentence(ctx, name)) for name in names]
            with formatter.section(chapter):
                formatter.write_dl(rows)

    def _sentence(self, ctx: click.Context, name: str) -> str:
        """What a command does, or why one of another package cannot be loaded."""
        if name in _SHIPPED:
            return shipped_sentence(name)
        try:
            command = self.get_command(ctx, name)
        except ConfigError as error:
            return str(error)
        return ((command.help if command else "") or "").split("\n\n")[0]


def _finite(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.", ctx, parameter)
    return value


def advice(error: click.UsageError) -> str:
    """A usage error in one line: its cause, then what may have been meant."""
    cause = error.format_message()
    if isinstance(error, click.NoSuchOption):
        cause = f"No such option {error.option_name!r}.{_meant(error)}"
    command = error.ctx.command_path if error.ctx else "fedsim"
    return f"{cause} See {command} --help."


def _meant(error: click.NoSuchOption) -> str:
    """The option of the command with a similar name, else that of an experiment."""
    name = error.option_name.lstrip("-")
    parameters = error.ctx.command.params if error.ctx else []
    options = [option.lstrip("-") for each in parameters for option in each.opts]
    if similar := nearest(name, [option for option in options if len(option) > 1]):
        return f" Did you mean '--{similar}'?"
    if "set" in options:
        keys = dict(_keys())
        if similar := nearest(name, keys):
            return f" Did you mean --set {keys[similar]}=...?"
    return ""


def _keys() -> Iterator[tuple[str, str]]:
    """The last part of each key of an experiment file, and the key; the first of equal ones."""
    from experiments.plan.config import ExperimentConfig

    schema = ExperimentConfig.model_json_schema()
    for name, field in reversed(schema["properties"].items()):
        section = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
        for key in section.get("properties", {}):
            yield key, f"{name}.{key}"
