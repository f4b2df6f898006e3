"""Changes to single options, by ``--set federation.rounds=5`` or by a sweep."""

import tomllib
from collections.abc import Sequence
from typing import Any

from fedsim.errors import ConfigError


def override(
    table: dict[str, Any], overrides: Sequence[str], option: str = "--set"
) -> dict[str, Any]:
    """Apply ``key=value`` overrides to a table, in place. An unquoted word is a string.

    Overriding a swept option removes its sweep.

    Raises:
        ConfigError: the equals sign is missing, or the key does not fit the table.
    """
    for text in overrides:
        key, equals, written = text.partition("=")
        if not equals or not key:
            example = "federation.rounds=5" if option == "--set" else "num_examples=1"
            raise ConfigError(f"{option} {text!r}: expected key=value, e.g. {example}.")
        try:
            value = tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            value = written
        except (ValueError, RecursionError):  # the limits of Python, not of TOML
            raise ConfigError(
                f"{option} {key}: {written[:20]!r}... has too many digits or brackets. Write less."
            ) from None
        set_value(table, key, value, f"{option} {key}")
        if isinstance(sweep := table.get("sweep"), dict):
            sweep.pop(key, None)
    return table


def set_value(table: dict[str, Any], key: str, value: object, where: str) -> None:
    """Set ``federation.rounds`` or ``attacks.0.steps`` in nested tables and lists, in place."""
    *parents, last = key.split(".")
    node: Any = table
    for part in parents:
        if isinstance(node, list):
            node = node[_index(where, part, node)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ConfigError(f"{where}: {part!r} is a value and has no options. Correct the key.")
    if isinstance(node, list):
        node[_index(where, last, node)] = value
    else:
        node[last] = value


def _index(where: str, part: str, node: list[Any]) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise ConfigError(
            f"{where}: {part!r} does not index a list of {len(node)} entries. Count from 0."
        )
    return int(part)
