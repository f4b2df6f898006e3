"""Commands, imported as they are called: the core's, shipped extras, those of other packages."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
import typer.main

from fedsim.config.build import installed
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
