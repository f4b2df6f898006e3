"""Names and numbers as they are printed: tasks, metrics, attacks, options and defenses."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from fedsim.config.build import registry
from fedsim.config.cell import CellConfig
from fedsim.records import AttackKey

TITLES = {
    "mcc": "MCC",
    "image-classification": "image classification",
    "text-classification": "text classification",
    "masked-language-modelling": "masked language modelling",
    "language-modelling": "language modelling",
    "auto": "training without attacks",
    "fedsgd": "FedSGD",
    "fedavg": "FedAvg",
    "other_client": "other client's update",
    "second_client": "a second other client's update",
    "fresh_row": "fresh rows for members",
}
"""Display names of everything but attacks, defenses and metrics, whose classes have titles."""


def title(name: str) -> str:
    """A metric, attack, defense, protocol or control as a reader knows it; else with spaces."""
    return TITLES.get(name) or own_titles().get(name) or name.replace("_", " ")


@cache
def own_titles() -> dict[str, str]:
    """By name, of the attacks, defenses and metrics here and in installed packages.

    A class that is derived from another one does not inherit its title.
    """
    # Not imported before something is shown, so that the command line answers at once.
    from attacks import attack_classes
    from fedsim.defenses import DEFENSES
    from fedsim.metrics import METRICS

    classes: dict[str, type] = {
        **registry(DEFENSES, "fedsim.defenses"),
        **registry(METRICS, "fedsim.metrics"),
        **attack_classes(),
    }
    return {name: str(vars(cls).get("title", "")) for name, cls in classes.items()}


def show(value: float | None, unit: str = "") -> str:
    """A number with the digits that its unit deserves, three where it has none; a dash for none.

    What rounds to zero has no sign.
    """
    if value is None or math.isnan(value):
        return "\N{EN DASH}"
    if math.isinf(value):
        return "∞" if value > 0 else "\N{MINUS SIGN}∞"
    if unit in {"dB", "points"}:
        text = f"{value:.1f}"
    elif unit == "1":
        text = f"{value:.2f}"
    elif unit == "rate":
        text = f"{value:.3f}"
    elif abs(value) >= 999.5:
        text = f"{value:,.0f}"
    else:
        text = f"{value:#.3g}".removesuffix(".")
    if float(text.replace(",", "")) == 0:
        text = text.removeprefix("-")
    return text.replace("-", "\N{MINUS SIGN}")


def duration(seconds: float) -> str:
    """``45 s``, ``41 min`` or ``2.3 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def utility_unit(name: str) -> str:
    """``rate`` for a measure of utility that is a share of the rows, or like one."""
    return "rate" if name in {"accuracy", "mcc"} else ""


def option(value: object) -> str:
    """A value of an option as an experiment file would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def options(text: str) -> str:
    """Canonical JSON of one part, or of a chain, as ``std=0.01, stage=client``."""
    try:
        parsed = json.loads(text or "{}")
    except json.JSONDecodeError:
        return text
    tables = parsed if isinstance(parsed, list) else [parsed]
    if not all(isinstance(table, dict) for table in tables):
        return text
    shown = (
        ", ".join(f"{key}={option(value)}" for key, value in table.items() if key != "name")
        for table in tables
    )
    return " + ".join(part for part in shown if part)


def differing(text: str, others: Iterable[str], ignored: Iterable[str] = ()) -> str:
    """Of the canonical JSON options ``text``, those that differ in ``others``: ``steps=300``."""
    tables = [json.loads(other) for other in {text, *others}]
    mine = {key: value for key, value in json.loads(text).items() if key not in ignored}
    differ = {k: v for k, v in mine.items() if any(table.get(k) != v for table in tables)}
    return options(json.dumps(differ))


def told_apart(attacker: AttackKey, others: Iterable[AttackKey]) -> str:
    """The attack and the options in which it differs from its namesakes among ``others``."""
    namesakes = [other.attack_options for other in others if other.attack == attacker.attack]
    notes = [
        differing(attacker.attack_options, namesakes, ignored=("adaptive",)),
        "adaptive" if attacker.adaptive else "",
    ]
    shown = ", ".join(filter(None, notes))
    return f"{title(attacker.attack)} ({shown})" if shown else title(attacker.attack)


def natural(text: str) -> tuple[str | float, ...]:
    """A sort key that puts ``std=0.01`` before ``std=0.1``, and ``batch_size=4`` before 16."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return tuple(float(part) if i % 2 else part for i, part in enumerate(parts))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"task": {"model": "lenet"}}`` -> ``{"task.model": "lenet"}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def settings(cells: Mapping[str, CellConfig], runs: Mapping[str, str]) -> dict[str, str]:
    """Cell -> how it differs from the others beside seed and defense, as ``batch_size=4``."""
    flat = {name: {"run": runs.get(name, "")} | _flat(cell) for name, cell in cells.items()}
    return {
        name: ", ".join(
            f"{key.rpartition('.')[2]}={option(value)}" for key, value in options.items()
        )
        for name, options in _differing(flat).items()
    }


def _flat(cell: CellConfig) -> dict[str, Any]:
    """All but seed and defense, and whether the seed is there for its utility alone."""
    flat = flatten(cell.model_dump(exclude={"seed", "defense"}))
    return {key: value for key, value in flat.items() if key != "capture.enabled"}


def _differing(flat: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    differ = [key for key in keys if len({json.dumps(v.get(key)) for v in flat.values()}) > 1]
    return {name: {key: values.get(key) for key in differ} for name, values in flat.items()}


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
