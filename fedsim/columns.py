"""Columns of a table, and how a row of values becomes the numbers that a network takes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.store.files import Record


class Column(Record):
    """A column of whole numbers or of categories; its range and grid are public.

    A number becomes one input, ``(value - low) / (high - low)``; a category as many as there are
    categories, of which its own is 1 and the others are 0.

    Attributes:
        name: as in the table's header.
        low: smallest value; of a category, the code of the first.
        high: largest value; of a category, the code of the last.
        category: whether the values have no order.
        step: of a number in its owner's unit, which is ``offset + step * value``.
        offset: the number behind a value of 0.
        names: of the categories, by value; empty where these are numbers.

    Example:
        >>> import torch
        >>> from fedsim.columns import Column, decoded, encoded
        >>> party = Column(name="party", high=2, category=True)
        >>> columns = [Column(name="age", low=18, high=98), party]
        >>> encoded(columns, torch.tensor([[38, 1]])).flatten().tolist()
        [0.25, 0.0, 1.0, 0.0]
        >>> decoded(columns, torch.tensor([[0.2513, 0.1, 0.7, 0.3]])).tolist()
        [[38, 1]]
    """

    name: str
    low: int = 0
    high: int
    category: bool = False
    step: float = 1.0
    offset: float = 0.0
    names: tuple[str, ...] = ()

    def shown(self, value: int) -> str:
        """A whole value as its owner writes it; a question mark for none of the categories."""
        if self.category and not self.low <= value <= self.high:
            return "?"
        return self.names[value] if self.names else f"{self.offset + self.step * value:g}"

    @property
    def width(self) -> int:
        """How many inputs the column becomes."""
        return self.high - self.low + 1 if self.category else 1


SURVEY = (
    Column(name="population", high=7300),
    Column(name="tv_news", high=7),
    Column(name="own_views", low=1, high=7, category=True),
    Column(name="views_of_clinton", low=1, high=7, category=True),
    Column(name="views_of_dole", low=1, high=7, category=True),
    Column(name="party", high=6, category=True),
    Column(name="age", low=18, high=98),
    Column(name="education", low=1, high=7),
    Column(name="income", low=1, high=24),
)
"""Of the built-in table, see ``fedsim.data.builtin``."""


def encoded(columns: Sequence[Column], values: Tensor) -> Tensor:
    """Inputs float32 ``(row, input)`` of whole values ``(row, column)``."""
    parts = []
    for column, value in zip(columns, values.T, strict=True):
        place = value - column.low
        if column.category:
            parts.append(torch.eye(column.width)[place])
        else:
            parts.append((place.double() / (column.high - column.low)).float()[:, None])
    return torch.cat(parts, 1)


def decoded(columns: Sequence[Column], inputs: Tensor) -> Tensor:
    """The nearest whole values int64 ``(row, column)`` of inputs ``(row, input)``.

    A category is the one with the largest input, or ``low - 1``, which is none, if two have it.
    """
    parts = inputs.double().split([column.width for column in columns], 1)
    values = []
    for column, part in zip(columns, parts, strict=True):
        if column.category:
            best = part == part.max(1, keepdim=True).values
            value = torch.where(best.sum(1) == 1, part.argmax(1), -1)
        else:
            value = (part[:, 0] * (column.high - column.low)).round().long()
        values.append(value + column.low)
    return torch.stack(values, 1)
