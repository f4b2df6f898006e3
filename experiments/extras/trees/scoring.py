"""Guessed rows against the private ones, each private row with one guess.

The measure is that of TimberStrike (arXiv 2506.07605) and TabLeak: a number counts within .319 of
the column's deviation, a category if it is equal, and guesses are assigned so that most values
count. This assignment reads the truth, and gives much to whoever knows the columns alone: guesses
drawn from each column by itself are the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.extras.trees.table import Rows, Schema

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
    """Score guesses; if there are fewer than rows, what lacks counts as wrong."""
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
