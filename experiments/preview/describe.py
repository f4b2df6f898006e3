"""``fedsim describe``: options of attacks, defenses, metrics and sections, from their classes."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from experiments.plan.config import ExperimentConfig, shipped
from experiments.preview.catalog import attacks, defenses, metrics
from fedsim.build import spelled, suggest
from fedsim.config_section import ConfigSection
from fedsim.errors import ConfigError

_WIDTH = 90


@dataclass(frozen=True)
class Option:
    """One option of a table.

    Attributes:
        type: the accepted values, in words.
        required: True if the option has no default.
        default: the default, as JSON data, or None.
        meaning: the docstring's entry for the option; may be empty.
    """

    name: str
    type: str
    required: bool
    default: Any
    meaning: str

    def text(self) -> str:
        """Name, type and default on one line, followed by the meaning."""
        if self.required:
            default = "has to be given"
        elif self.default is None:
            default = "not set by default"
        else:
            default = f"default {json.dumps(self.default)}"
        meaning = textwrap.wrap(self.meaning, _WIDTH, break_on_hyphens=False)
        lines = [f"  {self.name}: {self.type}, {default}", *(f"      {line}" for line in meaning)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Manual:
    """The manual of one table of an experiment file.

    Attributes:
        place: its place in the file.
        about: the description in the class's docstring.
        options: the options of the table.
    """

    name: str
    place: str
    about: str
    options: tuple[Option, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def text(self) -> str:
        """For a terminal."""
        options = [option.text() for option in self.options] or ["  none"]
        return "\n".join([f"{self.name}: {self.place}", "", self.about, "", "Options:", *options])


def manual(name: str) -> Manual:
    """The manual of a name, also as its paper spells it (``LAMP``, ``GI-GIP``, ``DP-SGD``).

    A section takes precedence over an attack of the same name.

    Raises:
        ConfigError: the name is unknown.
    """
    known: list[str] = []
    for place, find in _SHELVES:
        classes = find()
        entry = name if name in classes else spelled(name)
        if entry in classes:
            return _read(entry, place.format(name=entry), classes[entry])
        known += classes
    if name in shipped():
        raise ConfigError(
            f"describe {name!r}: is an experiment. fedsim show {name} says what it runs, and what "
            "that costs."
        )
    raise ConfigError(f"describe {name!r}: there is nothing of that name. {suggest(name, known)}")


def _sections(section: type[BaseModel] = ExperimentConfig, prefix: str = "") -> dict[str, Any]:
    """Tables of an experiment file, by dotted name."""
    sections: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, ConfigSection):
                sections |= {prefix + name: part, **_sections(part, f"{prefix}{name}.")}
    return sections


_SHELVES: tuple[tuple[str, Callable[[], Mapping[str, Any]]], ...] = (
    ("the file itself", lambda: {"experiment": ExperimentConfig}),
    ("a section, [{name}]", _sections),
    ('an attack; under [[attacks]], name = "{name}"', attacks),
    ('a defense; under [[defenses]], name = "{name}"', defenses),
    ('a metric; metrics = ["{name}"]', metrics),
)


def described(cls: type[Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of a class and of the tables in it, with the docstrings' words on each option.

    Args:
        cls: the class.
        schema: as pydantic makes it, with whole docstrings and without a word on options.
    """
    tables = {part.__name__: part for part in _sections().values()}
    parts = {name: described(tables[name], part) for name, part in schema.get("$defs", {}).items()}
    meanings = _meanings(cls)
    options = {
        name: {**option, "description": meanings[name]} if name in meanings else option
        for name, option in schema.get("properties", {}).items()
    }
    about = _split(cls.__doc__ or "")[0]
    return {
        **schema,
        "description": about,
        "properties": options,
        **({"$defs": parts} if parts else {}),
    }


def _meanings(cls: type[Any]) -> dict[str, str]:
    """What each option means, by the docstrings of the class and of those it inherits from."""
    meanings: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        meanings |= _split(parent.__doc__ or "")[1]
    return meanings


def _read(name: str, place: str, cls: type[Any]) -> Manual:
    schema = TypeAdapter(cls).json_schema()
    meanings = _meanings(cls)
    sections = _sections()
    options = []
    for option, taken in schema.get("properties", {}).items():
        required, default = option in schema.get("required", ()), taken.get("default")
        meaning = meanings.get(option, "")
        inner = option if cls is ExperimentConfig else f"{name}.{option}"
        if inner in sections:
            default = (
                None if default is None else {}
            )  # the defaults of its options are listed there
            meaning = f"{meaning} See fedsim describe {inner}.".strip()
        options.append(Option(option, _type(taken), required, default, meaning))
    about = "\n\n".join(filter(None, [_split(cls.__doc__ or "")[0], _facts(cls)]))
    return Manual(name, place, about, tuple(options))


def _facts(cls: type[Any]) -> str:
    """What an attack needs, whose a defense is, or the unit of a metric; none is an option."""
    if hasattr(cls, "requires"):
        known = f" It needs to know: {', '.join(sorted(cls.requires))}." * bool(cls.requires)
        return f"It reconstructs {' and '.join(sorted(cls.modalities))}.{known}"
    if hasattr(cls, "run_by"):
        known = f"{cls.known[0].lower()}{cls.known[1:]}"
        claim = f" Its paper claims: {cls.claim}." * bool(cls.claim)
        return (
            f"Kind: {cls.family}. Run by {cls.run_by}.{claim} An adaptive attacker knows: {known}"
        )
    if hasattr(cls, "attacker_wants"):
        return f"Unit: {cls.unit}. The attacker wants it {cls.attacker_wants}."
    return ""


def _split(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the entries of its attributes."""
    about, _, listed = inspect.cleandoc(docstring).partition("\n\nAttributes:\n")
    listed = listed.partition("\n\nExample:\n")[0]
    entries = re.split(r"^(\w+): ", textwrap.dedent(listed), flags=re.MULTILINE)
    return about, {
        name: " ".join(text.split())
        for name, text in zip(entries[1::2], entries[2::2], strict=True)
    }


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(
            _type(choice) for choice in schema["anyOf"] if choice.get("type") != "null"
        )
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    bounds = [f"{word} {schema[key]:g}" for key, word in _BOUNDS.items() if key in schema]
    items = schema.get("items", {})
    kind = _TYPES.get(schema.get("type", ""), "table")
    return " ".join([kind, *(["of:", _type(items)] if items else []), " and ".join(bounds)]).strip()


_TYPES = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
