"""``fedsim describe``: options of attacks, defenses, metrics and sections, from their classes."""

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.plan.config import ExperimentConfig, shipped
from experiments.preview.manuals import ClassPage, page_of, pages, sections
from fedsim.config.build import spelled, suggest
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


_SHELVES: tuple[tuple[str, Callable[[], Mapping[str, ClassPage]]], ...] = (
    ("the file itself", lambda: {"experiment": page_of(ExperimentConfig)}),
    ("a section, [{name}]", lambda: {name: page_of(cls) for name, cls in sections().items()}),
    ('an attack; under [[attacks]], name = "{name}"', lambda: pages("attacks")),
    ('a defense; under [[defenses]], name = "{name}"', lambda: pages("defenses")),
    ('a metric; metrics = ["{name}"]', lambda: pages("metrics")),
)


def _read(name: str, place: str, page: ClassPage) -> Manual:
    schema, known, options = page.options, sections(), []
    for option, taken in schema.get("properties", {}).items():
        required, default = option in schema.get("required", ()), taken.get("default")
        meaning = taken.get("description", "")
        inner = option if name == "experiment" else f"{name}.{option}"
        if inner in known:
            default = None if default is None else {}  # those of its options are listed there
            meaning = f"{meaning} See fedsim describe {inner}.".strip()
        options.append(Option(option, _type(taken), required, default, meaning))
    about = "\n\n".join(filter(None, [schema["description"], page.facts]))
    return Manual(name, place, about, tuple(options))


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
