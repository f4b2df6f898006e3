"""Tables of rows: those of a file, and guessed ones with intervals and their scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.extras.trees.forest import Array, Cells
from experiments.extras.trees.search import Guess
from fedsim.api import ConfigError
from fedsim.store.files import write_bytes

LABEL = "label"


@dataclass(frozen=True, eq=False)
class Rows:
    """A table with labels.

    Attributes:
        values: ``(row, feature)``.
        labels: ``(row,)``.
    """

    values: Array
    labels: Array

    @property
    def matrix(self) -> Array:
        """Features, then the label."""
        return np.column_stack([self.values, self.labels]).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Schema:
    """What the server knows of each feature, of its own rows or of a data dictionary.

    Attributes:
        whole: whether values are whole numbers, as codes of categories are.
        few: whether it is a category, that is whole and of at most ten values.
        low: smallest value.
        high: largest value.
        rows: of the server, ``(row, feature)``; none if it has none.
    """

    names: tuple[str, ...]
    whole: Array
    few: Array
    low: Array
    high: Array
    rows: Array

    @classmethod
    def of(cls, names: Sequence[str], values: Array) -> Schema:
        """As some rows show it."""
        whole = (values == np.round(values)).all(0)
        few = whole & np.array([len(np.unique(column)) <= 10 for column in values.T])
        return cls(tuple(names), whole, few, values.min(0), values.max(0), values)

    @classmethod
    def unknown(cls, names: Sequence[str], cells: Cells) -> Schema:
        """As far as thresholds tell: a feature spans them and one step more."""
        cuts = [t if len(t) else np.zeros(1) for t in cells.thresholds]
        steps = [float(np.diff(t).mean()) if len(t) > 1 else 1.0 for t in cuts]
        low = np.array([t[0] - step for t, step in zip(cuts, steps, strict=True)])
        high = np.array([t[-1] + step for t, step in zip(cuts, steps, strict=True)])
        no = np.zeros(len(cuts), bool)
        return cls(tuple(names), no, no, low, high, np.empty((0, len(cuts))))


def intervals(cells: Cells, schema: Schema, guess: Guess) -> tuple[Array, Array]:
    """Lowest and highest value that a row's leaves allow, ``(row, feature)`` each."""
    lows, highs = [], []
    for feature, cuts in enumerate(cells.thresholds):
        low, high = schema.low[feature], schema.high[feature]
        starts = np.concatenate([[min([low, *cuts[:1]])], cuts])
        ends = np.concatenate([cuts, [max([high, *cuts[-1:]])]])
        if schema.whole[feature]:
            starts = np.ceil(starts)
            ends[:-1] = np.ceil(ends[:-1]) - 1
        lows.append(starts[guess.low[:, feature]])
        highs.append(np.maximum(ends[guess.high[:, feature]], lows[-1]))
    return np.stack(lows, 1), np.stack(highs, 1)


def filled(schema: Schema, guess: Guess, low: Array, high: Array) -> Rows:
    """A value for each interval: the median of the server's values there, else its middle.

    Of a category it is the most frequent one, of whole numbers without such rows the lower middle.
    """
    middle = (low + high) / 2
    values = np.where(schema.whole, np.floor(middle), middle)
    for feature, column in enumerate(np.sort(schema.rows, 0).T):
        ends = np.stack([low[:, feature], high[:, feature]], 1)
        for row, (first, last) in enumerate(ends):
            inside = column[np.searchsorted(column, first) : np.searchsorted(column, last, "right")]
            if len(inside) and schema.few[feature]:
                codes, count = np.unique(inside, return_counts=True)
                values[row, feature] = codes[count.argmax()]
            elif len(inside):
                values[row, feature] = inside[len(inside) // 2]
    return Rows(values, guess.labels)


def read_table(path: Path, names: Sequence[str]) -> Rows:
    """A CSV with a header, the label last; features are taken by name, else by order.

    Raises:
        ConfigError: it has other columns, or no numbers.
    """
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    if len(header) != len(names) + 1 or not lines:
        raise ConfigError(
            f"{path}: has {len(header)} columns and {len(lines)} rows. Write a header, "
            f"{len(names)} features and the label last."
        )
    order = [header.index(name) if name in header[:-1] else at for at, name in enumerate(names)]
    try:
        values = np.array(lines, np.float64)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}. Write numbers alone.") from None
    return Rows(values[:, order], values[:, -1])


def write_rows(path: Path, names: Sequence[str], rows: Rows, low: Array, high: Array) -> None:
    """Each feature's value with its interval, and the label."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*(f"{name}{end}" for name in names for end in ("", "_low", "_high")), LABEL])
    columns = np.stack([rows.values, low, high], 2).reshape(len(low), -1)
    for line, label in zip(columns, rows.labels, strict=True):
        writer.writerow([*(f"{value:g}" for value in line), f"{label:g}"])
    write_bytes(path, text.getvalue().encode())


TOLERANCE = 0.319


@dataclass(frozen=True)
class Score:
    """Shares of a client's values and rows.

    Attributes:
        values: within the tolerance, the label among them.
        rows: whose values are all so.
    """

    values: float
    rows: float


def score(truth: Rows, guess: Rows, schema: Schema, tolerance: float = TOLERANCE) -> Score:
    """Score guesses, one a private row; if there are fewer, what lacks counts as wrong.

    The measure is that of TimberStrike (arXiv 2506.07605) and TabLeak: a number counts within .319
    of the column's deviation, a category if it is equal, and guesses are assigned so that most
    values count. This assignment reads the truth, and gives much to whoever knows the columns
    alone: guesses drawn from each column by itself are the baseline.
    """
    private, guessed = truth.matrix, guess.matrix
    wrong = np.zeros((len(private), len(guessed)), np.int16)
    categories = [*schema.few, len(np.unique(truth.labels)) <= 2]
    for column, (few, spread) in enumerate(zip(categories, private.std(0), strict=True)):
        apart = np.abs(private[:, column, None] - guessed[None, :, column])
        wrong += apart > (0.5 if few else tolerance * spread)
    matched = wrong[linear_sum_assignment(wrong)]
    right = (private.shape[1] - matched).sum()
    return Score(float(right / private.size), float((matched == 0).sum() / len(private)))


def shuffled(truth: Rows, seed: int) -> Rows:
    """The private columns themselves, each in an order of its own: rows are right by chance."""
    rng = np.random.default_rng(seed)
    columns = [rng.permutation(column) for column in truth.matrix.T]
    return Rows(np.stack(columns[:-1], 1), columns[-1])
