"""A level of the realism ladder in an experiment file, alone or swept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.plan.levels import LEVELS, filled
from experiments.plan.overrides import set_value
from fedsim.errors import ConfigError


def at_level(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with what its level, or each level that it sweeps, fills in."""
    level, sweep = table.get("level"), table.get("sweep")
    swept = sweep.get("level") if isinstance(sweep, dict) else None
    if not isinstance(swept, list):
        swept = []
    if level not in LEVELS and not swept:
        return table
    if level is not None and swept:
        raise ConfigError(f"level: {level!r} stands there, and it is swept too. Remove one.")
    settled: dict[str, Any] = json.loads(json.dumps(table))
    if swept:
        settled["sweep"]["level"] = [
            {"level": rung, **filled(rung, table)} if rung in LEVELS else rung for rung in swept
        ]
    elif level is not None:
        for key, value in filled(level, table).items():
            if isinstance(settled.get(key.split(".")[0], {}), dict):  # else it is refused below
                set_value(settled, key, value, key)
    return settled


def check_levels(values: Sequence[object]) -> None:
    """Raise ``ConfigError`` where a swept value named no level and was thus not filled in."""
    for value in values:
        if not isinstance(value, dict):
            raise ConfigError(
                f"sweep.level: {value!r} is no level. Write some of {', '.join(LEVELS)}."
            )
