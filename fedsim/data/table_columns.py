"""Rows of somebody's table: columns of numbers and of categories, as a network takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.columns import Column
from fedsim.errors import ConfigError

_MOST_CATEGORIES = 100
"""Different texts of a column, above which it holds no categories. Half of it refuses the countries
of a census, twice of it the towns of few."""
_MOST_DECIMALS = 6
_STEPS = 2**16
"""Steps of the grid on which numbers without a coarser one are told apart."""


def find_columns(
    tables: Mapping[str, Any], features: Mapping[str, Any], chosen: str, label: str, dataset: str
) -> tuple[Column, ...]:
    """The columns that a network takes: those chosen, with commas, or all but the label.

    Their ranges, grids and categories are those of all splits, and public.

    Raises:
        ConfigError: a column does not exist, is of another type, or has too many texts.
    """
    names = [name.strip() for name in chosen.split(",")] if chosen else list(features)
    if unknown := [name for name in names if name not in features]:
        raise ConfigError(
            f"{dataset}: there is no column {unknown[0]!r}. Its columns are {', '.join(features)}."
        )
    return tuple(_column(tables, name, dataset) for name in names if name != label)


def read_values(table: Any, columns: Sequence[Column], first: int, dataset: str) -> Tensor:  # noqa: ANN401
    """Whole values int64 ``(row, column)``, see ``fedsim.columns.Column``.

    Args:
        table: a slice of a split.
        columns: in their order.
        first: number of its first row, for messages.
        dataset: the name that the user wrote.

    Raises:
        ConfigError: a value is missing.
    """
    parts = []
    for column in columns:
        values = table[column.name][:]
        for number, value in enumerate(values, first):
            if value is None or value != value:  # NaN
                raise ConfigError(
                    f"{dataset}: row {number} has no {column.name}. Fill the value in, choose a "
                    "slice without it, or name other columns: input_column = 'a,b'."
                )
        if column.names:
            places = {name: place for place, name in enumerate(column.names)}
            parts.append(torch.tensor([places[str(value)] for value in values]))
        else:
            numbers = (np.asarray(values, np.float64) - column.offset) / column.step
            parts.append(torch.from_numpy(np.rint(numbers).astype(np.int64)))
    return torch.stack(parts, 1)


def _column(tables: Mapping[str, Any], name: str, dataset: str) -> Column:
    having = [table for table in tables.values() if name in table.features]
    kind = str(getattr(having[0].features[name], "dtype", ""))
    if kind in ("string", "large_string", "bool"):
        return _category(having, name, dataset)
    if not kind.startswith(("int", "uint", "float", "double")):
        raise ConfigError(
            f"{dataset}: the column {name!r} holds neither numbers nor categories. Name those that "
            "the model takes: input_column = 'a,b'."
        )
    values = np.concatenate([np.asarray(table[name][:], np.float64) for table in having])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if low == high:
        return Column(name=name, high=0, category=True, names=(f"{low:g}",))
    step = _grid(values, high - low)
    return Column(name=name, high=round((high - low) / step), step=step, offset=low)


def _category(having: Sequence[Any], name: str, dataset: str) -> Column:
    texts = {str(value) for table in having for value in table.unique(name) if value is not None}
    if len(texts) > _MOST_CATEGORIES:
        raise ConfigError(
            f"{dataset}: there is no image column, and the column {name!r} holds {len(texts)} "
            "different texts, too many for categories. Choose a data set of images, a model that "
            "fits this one, or name the columns of a table: input_column = 'a,b'."
        )
    return Column(name=name, high=max(0, len(texts) - 1), category=True, names=tuple(sorted(texts)))


def _grid(values: np.ndarray[Any, Any], width: float) -> float:
    """The coarsest decimal step on which all values lie; else so small a part of their range."""
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = values * 10**decimals
        if np.allclose(scaled, np.rint(scaled), rtol=0, atol=1e-4):
            return float(10**-decimals)
    return width / _STEPS
