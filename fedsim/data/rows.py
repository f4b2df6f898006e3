"""Rows of any data set, loaded by name, split (as in ``train[100:900]``) and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.columns import Column, encoded
from fedsim.data import DATASETS
from fedsim.data.builtin import Builtin
from fedsim.data.tables import (
    Tables,
    find_input,
    find_label,
    has_images,
    locate,
    open_tables,
    read_class_names,
    read_images,
    read_labels,
    read_text,
)
from fedsim.errors import ConfigError
from fedsim.types import Rows

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


def load_rows(
    dataset: str,
    split: str,
    *,
    modality: Literal["image", "text"],
    input_column: str = "",
    label_column: str = "",
    image_size: int = 0,
) -> Rows:
    """Read the rows of a split; ``Rows.numbers`` count from the start of the unsliced split.

    Blank texts and headings are dropped. Without a label column every row has the label 0. Equal
    calls share their tensors, so these must not be changed in place.

    Args:
        dataset: a built-in, a hub id or local folder with an optional ``:configuration``, or the
            file of a table.
        split: as in ``train``, ``train[100:900]`` or ``train[:50%]``.
        modality: required type of the inputs.
        input_column: name of the column; if empty, it is found by its type. Of a table without
            images, the columns that the model takes, with commas; all but the label if empty.
        label_column: name of the column of class numbers or texts; if empty, a column of numbers
            is found by its name or type.
        image_size: height and width in pixels to resize images to; 0 keeps their size.

    Raises:
        ConfigError: the data set, the split or a column does not exist or does not fit.
    """
    location = ("", "") if is_builtin(dataset) else locate(dataset)
    return _read(dataset, location, split, modality, input_column, label_column, image_size)


def split_sizes(dataset: str) -> dict[str, int]:
    """Number of rows in each split of a data set."""
    if (builtin := _builtin(dataset)) is not None:
        return dict(builtin.sizes)
    return {name: len(table) for name, table in open_tables(*locate(dataset), dataset).items()}


def is_builtin(dataset: str) -> bool:
    """True if the data set comes with fedsim."""
    return _builtin(dataset) is not None


# The location is part of the key, since FEDSIM_HUB may name another folder the next time.
@lru_cache(maxsize=8)
def _read(
    dataset: str,
    location: tuple[str, str],
    split: str,
    modality: Literal["image", "text"],
    input_column: str,
    label_column: str,
    image_size: int,
) -> Rows:
    part = Split.parse(split, dataset)
    builtin = _builtin(dataset)
    tables = {} if builtin else open_tables(*location, dataset)
    sizes = builtin.sizes if builtin else {name: len(table) for name, table in tables.items()}
    if builtin and builtin.drawn and part.key is not None:
        sizes = {part.name: builtin.drawn}
    if part.name not in sizes:
        raise ConfigError(
            f"{dataset}: there is no split {part.name!r}. Its splits are {', '.join(sizes)}."
        )
    numbers = part.numbers(sizes[part.name], dataset)
    if builtin is None:
        columns = (input_column, label_column)
        return _read_table(tables, part.name, dataset, numbers, modality, columns, image_size)
    if column := input_column or label_column:
        raise ConfigError(
            f"{dataset}: there is no column {column!r}, since a built-in data set has no columns. "
            "Leave input_column and label_column out."
        )
    if modality != builtin.modality:
        raise ConfigError(
            f"{dataset}: it holds {builtin.modality}s, but the task needs {modality}s. "
            f"Choose a data set of {modality}s, or a model for {builtin.modality}s."
        )
    if part.key is None:
        inputs, labels = builtin.read(part.name, numbers)
    else:
        inputs, labels = builtin.draw(part.key, numbers)
    if image_size and isinstance(inputs, Tensor) and not builtin.columns:
        inputs = read_images(map(to_pil, inputs), numbers, dataset, image_size)
    return Rows(inputs, labels, tuple(numbers), builtin.class_names, builtin.columns)


def _read_table(
    tables: Tables,
    split: str,
    dataset: str,
    numbers: range,
    modality: Literal["image", "text"],
    columns: tuple[str, str],
    image_size: int,
) -> Rows:
    table = tables[split]
    if modality == "image" and columns[1] and not has_images(table.features, columns[0]):
        return _read_rows(tables, split, dataset, numbers, columns)
    column = find_input(table.features, modality, columns[0], dataset)
    label = find_label(table.features, columns[1], dataset)
    sliced = table.select(numbers)
    labels = torch.zeros(len(numbers), dtype=torch.int64)
    names: tuple[str, ...] = ()
    if label:
        names = read_class_names(tables, label, dataset)
        labels = read_labels(sliced[label][:], numbers, dataset, names)
    if modality == "image":
        images = read_images(sliced[column], numbers, dataset, image_size)
        return Rows(images, labels, tuple(numbers), names)
    texts = tuple(read_text(text) for text in sliced[column][:])
    filled = [position for position, text in enumerate(texts) if text]
    if not filled:
        raise ConfigError(
            f"{dataset}: the texts of the rows {numbers[0]} to {numbers[-1]} are all blank. "
            "Choose a longer slice."
        )
    return Rows(texts, labels, tuple(numbers), names).take(filled)


def _read_rows(
    tables: Tables, split: str, dataset: str, numbers: range, named: tuple[str, str]
) -> Rows:
    """Rows of numbers and categories, each an image of as many channels of one pixel."""
    table = tables[split]
    label = find_label(table.features, named[1], dataset)
    columns = find_columns(tables, table.features, named[0], label, dataset)
    if not columns:
        raise ConfigError(f"{dataset}: there is no column beside {label!r}. Choose another table.")
    sliced = table.select(numbers)
    values = read_values(sliced, columns, numbers[0], dataset)
    names = read_class_names(tables, label, dataset)
    labels = read_labels(sliced[label][:], numbers, dataset, names)
    inputs = encoded(columns, values)[:, :, None, None]
    return Rows(inputs, labels, tuple(numbers), names, columns)


def to_pil(image: Tensor) -> Any:  # noqa: ANN401
    """A uint8 image ``(channel, height, width)`` as a PIL image."""
    from PIL import Image

    return Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())


def _builtin(dataset: str) -> Builtin | None:
    return DATASETS[dataset]() if dataset in DATASETS else None


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
