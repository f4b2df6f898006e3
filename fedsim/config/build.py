"""Strict construction of frozen dataclasses from the tables of an experiment file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fedsim.errors import ConfigError, FedsimError, Terminated, message_of

if TYPE_CHECKING:  # a page of help validates nothing, and need not wait for it
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")
_OWN = {"attacks", "clients", "experiments", "fedsim", "server"}
"""Packages of this project, whose classes are known to change nothing as they are built."""


def suggest(word: str, known: Iterable[str]) -> str:
    """``Did you mean 'std'?`` if a known name is similar in any case, else the known names."""
    names = sorted(known)
    if similar := nearest(word, names):
        return f"Did you mean {similar!r}?"
    return f"Known: {', '.join(names) or 'nothing'}."


def _install(name: str) -> str:
    """What to do about a package in the working directory that was not installed; else empty."""
    if not (Path(name).name == name and Path(name, "pyproject.toml").is_file()):
        return ""
    return f" The package in {name}/ is not installed: pip install -e {name}."


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that is similar in any case; empty if there is none."""
    folded = {spelled(name): name for name in known}
    similar = difflib.get_close_matches(spelled(word), folded, n=1)
    return folded[similar[0]] if similar else ""


def spelled(name: str) -> str:
    """A name in the spelling of the registries: ``GI-GIP`` gives ``gi_gip``."""
    return name.casefold().replace("-", "_").replace(" ", "_")


def registry(builtin: Mapping[str, type[T]], group: str) -> dict[str, type[T]]:
    """Built-in classes, and those that installed packages register as entry points of ``group``.

    The working directory is never searched: a folder of somebody else's registers nothing.

    Raises:
        ConfigError: an entry point has the name of a built-in class, or cannot be loaded.
    """
    added = {point.name: cast(type[T], _load(point)) for point in installed(group)}
    if clash := sorted(builtin.keys() & added.keys()):
        raise ConfigError(f"{group}: {clash[0]!r} is already taken. Rename the entry point.")
    return {**builtin, **added}


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of ``group``, none of which is loaded."""
    return _installed(group, tuple(filter(_is_elsewhere, sys.path)))


@cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of the packages on ``path``; to search these takes longer than many a job."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for package in distributions(path=list(path)):
        for point in package.entry_points.select(group=group):
            points.setdefault((package.name, point.name), point)  # as in an import, the first
    return tuple(points.values())


def _is_elsewhere(folder: str) -> bool:
    return os.path.realpath(folder) != os.path.realpath(os.curdir)


@cache
def _load(point: EntryPoint) -> Any:  # noqa: ANN401
    """The class; importing it does not change the settings of this process."""
    from fedsim.process import unchanged
    from fedsim.seeds import seeded

    try:
        with unchanged(), seeded(0):
            return point.load()
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # it is code of others, which may even ask to exit
        package = point.dist.name if point.dist else "the package"
        raise ConfigError(
            f"{point.group}: {point.name!r} of {package} cannot be loaded "
            f"({type(error).__name__}: {message_of(error)}). Mend or uninstall it."
        ) from None


def locate(where: str, *parts: str | int) -> str:
    """Path of a key: ``locate("defenses", 0, "std")`` gives ``defenses[0].std``."""
    for part in parts:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    return where


_TOML = {
    "a valid array": "a list",
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text in quotes",
    "an object": "a table",
}
"""Pydantic's description of a type -> the same in the words of an experiment file."""


def explain(error: ValidationError, where: str) -> str:
    """First error of a pydantic validation: ``<where>.<key>: <value> does not fit. <fix>.``."""
    return explain_one(error.errors()[0], where)


def explain_one(first: ErrorDetails, where: str) -> str:
    """One error of a pydantic validation, as ``explain`` says it."""
    path = locate(where, *first["loc"]) or "experiment"
    if first["type"] == "missing":
        return f"{path}: is missing. Add it."
    message = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    if isinstance(first["input"], dict) and first["type"] == "value_error":
        return f"{path}: {message}."
    shown = json.dumps(first["input"], default=str)[:80]
    should = message.removeprefix("Input should be ")
    if should == message:
        return f"{path}: {shown} does not fit: {message}."
    fix = f"a number {should}" if should.startswith(("greater", "less")) else should
    return f"{path}: {shown} does not fit. Write {_TOML.get(fix, fix)}."


def named_number(text: str, flag: str, example: str) -> tuple[str, float]:
    """Read ``name=number``, what a flag of a command line is given.

    Raises:
        ConfigError: it is of another form, and should be as the example.
    """
    name, _, written = text.partition("=")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{flag} {text!r}: expected name=number, e.g. {flag} {example}.")
    return name, value


def build(known: Mapping[str, type[T]], table: Mapping[str, object], where: str) -> T:
    """``build(ATTACKS, {"name": "dlg", "steps": 300}, "attacks[0]")`` gives ``DLG(steps=300)``.

    Args:
        known: the classes by name.
        table: ``name`` and the options of the class; values are not coerced.
        where: path of the table in the experiment file, for messages.

    Raises:
        ConfigError: the name or an option is unknown, or a value does not fit.
    """
    from pydantic import TypeAdapter, ValidationError

    if faults := list(misnamed(table, where, known, lambda name: _options(known[name]))):
        raise ConfigError(faults[0])
    options = dict(table)
    name = str(options.pop("name"))
    cls = known[name]
    try:
        with contained(cls, where, name):
            return TypeAdapter(cls).validate_json(json.dumps(options, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _options(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cast(Any, cls)) if field.init]


def misnamed(
    table: object, where: str, known: Iterable[str], options: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    """What is wrong with the name and the keys of a table, without a look at their values.

    Args:
        table: ``name`` and the options of a class.
        where: its path in the experiment file.
        known: names of classes.
        options: those of a class by its name.
    """
    if not isinstance(table, Mapping):
        yield f'{where}: {table!r} is not a table. Write {{ name = "..." }}.'
        return
    names = tuple(known)
    if "name" not in table:
        yield f"{where}.name: is missing. {suggest('', names)}"
        return
    name = str(table["name"])
    if name not in names:
        yield f"{where}.name: {name!r} is not known. {suggest(name, names)}{_install(name)}"
        return
    fields = tuple(options(name))
    for key in table:
        if key not in (*fields, "name"):
            yield f"{where}.{key}: {name} has no such option. {suggest(str(key), fields)}"


@contextmanager
def contained(cls: type, where: str, name: str) -> Iterator[None]:
    """Run what a class does in this process; one of others changes none of its settings.

    Raises:
        ConfigError: code of others has raised, or asked to exit.
    """
    if cls.__module__.partition(".")[0] in _OWN:
        yield
        return
    from pydantic import ValidationError

    from fedsim.process import unchanged

    try:
        with unchanged():
            yield
    except (KeyboardInterrupt, Terminated, ValidationError, FedsimError):
        raise
    except BaseException as error:  # as in ``_load``
        raise ConfigError(
            f"{where}: {name} cannot be used ({type(error).__name__}: {message_of(error)})."
        ) from None


def options_of(part: object) -> dict[str, Any]:
    """All options of a built part as JSON data."""
    from pydantic import TypeAdapter

    adapter: TypeAdapter[object] = TypeAdapter(type(part))
    data: dict[str, Any] = adapter.dump_python(part, mode="json")
    return data


def changed_options(part: object) -> dict[str, Any]:
    """The options that differ from their defaults, as JSON data.

    Labels, seeds and fingerprints derive from these, so that an option can be added or removed
    without another draw of every run that does not set it.
    """
    return {
        field.name: value
        for field, value in zip(
            dataclasses.fields(cast(Any, part)), options_of(part).values(), strict=True
        )
        if getattr(part, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> object:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
