"""Values of a table's row that come back exactly, as by Österberg Nilsson et al. (2606.00986)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsim.columns import SURVEY, Column, decoded
from fedsim.metrics.base import Examples, Metric
from fedsim.metrics.images import clamped


@dataclass(frozen=True)
class TableMetric(Metric):
    """A share of values that are right once rounded to their column's grid, which is public."""

    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"
    modality: ClassVar[Literal["image", "text", "table", "any"]] = "table"


@dataclass(frozen=True)
class ExactRow(TableMetric):
    """1 if every value of the row is right, else 0: the exact-match rate of 2606.00986."""

    name: ClassVar[str] = "exact_row"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """0 or 1."""
        return _right(guess, truth).all(1).double()


@dataclass(frozen=True)
class ExactColumns(TableMetric):
    """Share of the row's values that are right, each after rounding to its grid."""

    name: ClassVar[str] = "exact_columns"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return _right(guess, truth).double().mean(1)


def _right(guess: Examples, truth: Examples) -> Tensor:
    """Whether each value is right, ``(row, column)``."""
    values = (decoded(truth.columns, clamped(e.batch.inputs).flatten(1)) for e in (guess, truth))
    return torch.eq(*values)


def column_metrics(columns: Sequence[Column]) -> dict[str, type[Metric]]:
    """A metric for each column: 1 if its value is right, else 0."""
    return {f"exact_{column.name}": _column_metric(i, column) for i, column in enumerate(columns)}


def _column_metric(index: int, column: Column) -> type[Metric]:
    kind = f"one of {column.width} categories" if column.category else "a whole number"

    def score(self: Metric, guess: Examples, truth: Examples) -> Tensor:
        return _right(guess, truth)[:, index].double()

    said = f"1 if the row's ``{column.name}``, {kind}, is right, else 0."
    name = f"exact_{column.name}"
    body = {"name": name, "score": score, "__doc__": said, "column": column}
    return dataclass(frozen=True)(type("ExactColumn", (TableMetric,), body))


SURVEY_METRICS = column_metrics(SURVEY)
"""Of the built-in table."""
