"""The page of ``fedsim --help``: commands by what they are for, whole sentences at any width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import click
import typer.core

from fedsim.build import nearest

CHAPTERS: Mapping[str, tuple[str, ...]] = {
    "Simulate": ("run", "watch", "show", "simulate", "prepare", "prior", "init"),
    "Attack": ("attack", "score", "report", "open", "play"),
    "Judge": ("calibrate", "check", "diff", "doctor", "limits", "audit", "evidence"),
    "Compete": ("seal", "submit", "grade"),
    "Manage": ("ls", "rm", "export"),
    "Look up": ("list", "describe", "schema"),
    "Extend": ("new",),
}


class Chapters(typer.core.TyperGroup):
    """A group of commands that lists them under the headings of ``CHAPTERS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of their chapters."""
        del ctx
        return [name for names in CHAPTERS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command whose numbers are finite: a range lets NaN through."""
        command = super().get_command(ctx, name)
        for parameter in command.params if command else ():
            if isinstance(parameter.type, click.types.FloatParamType):
                parameter.callback = parameter.callback or _finite
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list a chapter; click alone would cut sentences at the terminal's width."""
        width = max(map(len, self.commands))
        for chapter, names in CHAPTERS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (f"{name:<{width}}", command.help or "") for name, command in commands if command
            ]
            with formatter.section(chapter):
                formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in rows])


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
