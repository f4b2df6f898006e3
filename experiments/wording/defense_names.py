"""Display names of defenses: the name plus every non-default option."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from experiments.wording.names import option, title
from fedsim.config.cell import CellConfig

NamedPart: TypeAlias = tuple[str, dict[str, Any]]
"""One defense of a chain: its name and its options."""
NO_DEFENSE = "no defense"
"""What a sentence calls the defense ``none``."""
SYMBOLS = {"epsilon": "ε", "delta": "δ"}


def defense_name(defense: str, text: str) -> str:
    """``DP-SGD (clip=5, ε=10)``; a chain as ``clip (norm=1) + sign``.

    Defenses with different options have different names, since at least one of them departs from
    the default where they differ. If the package of a defense is not installed, all its options
    are shown.

    Args:
        defense: name as in the rows, the names of a chain joined by ``+``.
        text: canonical JSON of all options, or of those given in an experiment file.
    """
    parts = _parts(defense, text)
    if parts is None:
        return f"{family(defense)} ({text})"
    return " + ".join(_name(title(name), _written(_changed(name, table))) for name, table in parts)


def spoken(name: str) -> str:
    """A display name where a sentence or a picture needs one: ``no defense`` for none."""
    return NO_DEFENSE if name == "none" else name


def cell_defense(cell: CellConfig) -> str:
    """Display name of a cell's defense; ``none`` for no defense."""
    name = "+".join(str(part.get("name")) for part in cell.defense) or "none"
    return defense_name(name, json.dumps(cell.defense))


def family(defense: str) -> str:
    """Display name without options: ``DP-SGD``, ``clip + sign``."""
    return " + ".join(map(title, defense.split("+")))


def short_options(defense: str, text: str) -> str:
    """The non-default options alone: ``clip=5, ε=10``; empty if there are none."""
    parts = _parts(defense, text)
    if parts is None:
        return text
    return " + ".join(filter(None, (_written(_changed(name, table)) for name, table in parts)))


def compact(value: object) -> str:
    """The shortest text that keeps every digit: ``1e5`` for 100000.0, ``5`` for 5.0, ``0.001``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(float(str(value))):
        return "none" if value is None else option(value)
    exact = Decimal(repr(value)).normalize()
    exponent = exact.adjusted()
    if -4 < exponent < 5:
        return f"{exact:f}"
    return f"{exact.scaleb(-exponent):f}e{exponent}"


def _parts(defense: str, text: str) -> list[NamedPart] | None:
    """The defenses of a chain; None if the text is not JSON."""
    try:
        parsed = json.loads(text or "{}")
    except json.JSONDecodeError:
        return None
    tables = parsed if isinstance(parsed, list) else [parsed]
    if not all(isinstance(table, dict) for table in tables):
        return None
    parts: list[NamedPart] = [(str(table.pop("name", defense)), table) for table in tables]
    return parts or [(defense, {})]


def _changed(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    defaults = _defaults(name)
    return {k: v for k, v in sorted(table.items()) if k not in defaults or defaults[k] != v}


@cache
def _defaults(name: str) -> Mapping[str, Any]:
    """Default of each option that has one, as JSON data; empty for an unknown defense."""
    from fedsim.config.build import registry
    from fedsim.defenses import DEFENSES

    kind: Any = registry(DEFENSES, "fedsim.defenses").get(name)
    fields = dataclasses.fields(kind) if kind is not None else ()
    return {
        field.name: json.loads(json.dumps(field.default, default=str))
        for field in fields
        if field.default is not dataclasses.MISSING
    }


def _written(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)}={compact(value)}" for key, value in table.items())


def _name(name: str, options: str) -> str:
    return f"{name} ({options})" if options else name
