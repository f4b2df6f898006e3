"""Splits in the user's notation: a name and an optional slice, as in ``train[100:900]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedsim.errors import ConfigError

_FORM = re.compile(
    r"\s*(?P<name>[^\s\[\]:+]+)(?:\[(?P<start>(-?\d+%?)?):(?P<stop>(-?\d+%?)?)\])?\s*"
)

_KEY = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True)
class Split:
    """Part of a data set, with the slices of the datasets library: rows, or per cent with ``%``.

    Attributes:
        name: name of the split.
        start: first row, counted from the end if negative; empty for the beginning.
        stop: row after the last one; empty for the end.
    """

    name: str
    start: str = ""
    stop: str = ""

    @classmethod
    def parse(cls, text: str, dataset: str) -> Split:
        """Read ``name``, ``name[a:b]`` or ``name[a%:b%]``.

        Raises:
            ConfigError: the text does not have this form.
        """
        if (form := _FORM.fullmatch(text)) is None:
            raise ConfigError(
                f"{dataset}: {text!r} is not a split. "
                "Write it like 'train', 'train[100:900]' or 'train[:50%]'."
            )
        split = cls(form["name"], form["start"] or "", form["stop"] or "")
        for bound in (split.start, split.stop):
            if bound.endswith("%") and abs(int(bound[:-1])) > 100:
                raise ConfigError(f"{dataset}: {bound} in {text!r} is more than 100 %. Lower it.")
        return split

    @property
    def key(self) -> int | None:
        """Of a built-in's rows that are drawn by a key, ``drawn@<hexadecimal>``; else None."""
        name, at, key = self.name.partition("@")
        return int(key, 16) if name == "drawn" and at and _KEY.fullmatch(key) else None

    def __str__(self) -> str:
        return f"{self.name}[{self.start}:{self.stop}]" if self.start or self.stop else self.name

    def numbers(self, rows: int, dataset: str) -> range:
        """Row numbers in a split that has ``rows`` rows before it is sliced.

        Raises:
            ConfigError: the slice is empty.
        """
        numbers = range(rows)[_row(self.start, rows) : _row(self.stop, rows)]
        if not numbers:
            raise ConfigError(
                f"{dataset}: {str(self)!r} holds no row. "
                f"{self.name!r} has the rows 0 to {rows - 1}; choose a slice within them."
                if rows
                else f"{dataset}: the split {self.name!r} holds no row. Choose another split."
            )
        return numbers


def _row(bound: str, rows: int) -> int | None:
    if not bound:
        return None
    # Percentages are rounded to the nearest row, as the datasets library does by default.
    return round(int(bound[:-1]) * rows / 100) if bound.endswith("%") else int(bound)
