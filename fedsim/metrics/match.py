"""Assignment of guesses to private examples: one for a batch, shared by all its metrics."""

import math
from collections import Counter
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.images import pixels
from fedsim.metrics.tokens import Tokens, same_places
from fedsim.types import Batch

Modality: TypeAlias = Literal["image", "text"]
Assignment: TypeAlias = tuple[int | None, ...]


def match(guess: Examples, truth: Examples, modality: Modality) -> Assignment:
    """Index of the guess for each private example; None if there are fewer guesses.

    The assignment minimises the total cost (Hungarian method). It uses the truth, so surplus
    guesses favour the attacker. The cost of two images is the root of their mean squared error,
    that of two texts is ``text_distance``; labels are not used. The former obeys the triangle
    inequality, so an exact guess is never better assigned to another image.
    """
    from scipy.optimize import linear_sum_assignment

    if modality == "image":
        cost = _image_costs(guess, truth)
    else:
        cost = _text_costs(guess.tokens, truth.tokens)
    rows, columns = linear_sum_assignment(cost.numpy())
    chosen = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return tuple(chosen.get(row) for row in range(len(cost)))


def align(guess: Examples, matched: Assignment, modality: Modality) -> Examples:
    """Guesses in the order of the private examples; a blank one where none is assigned.

    A blank guess is a grey image (0.5) or an empty text, with the label -1. Soft labels become the
    most likely class. If there is no guess at all, use ``nothing``.
    """
    rows = [len(guess.batch) if index is None else index for index in matched]
    batch = guess.batch
    labels = batch.labels.argmax(1) if batch.labels.is_floating_point() else batch.labels
    inputs = _with_blank(batch.inputs, 0.5 if modality == "image" else 0)[rows]
    mask = None if batch.mask is None else _with_blank(batch.mask, 0)[rows]
    aligned = Batch(inputs, _with_blank(labels, -1)[rows], mask)
    if modality == "image":
        return Examples(aligned, columns=guess.columns)
    words, special, tokens = (*guess.words, ""), (*guess.words_special, ""), (*guess.tokens, ())
    return Examples(
        aligned,
        tuple(words[row] for row in rows),
        tuple(special[row] for row in rows),
        tuple(tokens[row] for row in rows),
        listed=guess.words,
    )


def nothing(truth: Examples, modality: Modality) -> Examples:
    """A blank guess for each private example, as which a failed job is scored."""
    empty = Examples(truth.batch[:0], columns=truth.columns)
    return align(empty, (None,) * len(truth.batch), modality)


def text_distance(first: Tokens, second: Tokens) -> float:
    """1 minus the mean of two overlaps of token ids; 0 for equal texts, 1 for disjoint ones.

    One overlap ignores the order: the F measure of token counts, which is ROUGE-1 on ids. The other
    is the share of the longer text's positions that agree. The distance is symmetric, and cheaper
    than ROUGE on words.
    """
    if not first or not second:
        return float(first != second)
    common = (Counter(first) & Counter(second)).total()
    unordered = 2 * common / (len(first) + len(second))
    ordered = same_places(first, second) / max(len(first), len(second))
    return 1 - (unordered + ordered) / 2


def _text_costs(guesses: tuple[Tokens, ...], truths: tuple[Tokens, ...]) -> Tensor:
    cost = [text_distance(guess, truth) for truth in truths for guess in guesses]
    return torch.tensor(cost, dtype=torch.float64).reshape(len(truths), len(guesses))


def _image_costs(guess: Examples, truth: Examples) -> Tensor:
    guesses, truths = (images.flatten(1) for images in pixels(guess, truth))
    # Matrix products would round, and equal images would differ.
    distance = torch.cdist(truths, guesses, compute_mode="donot_use_mm_for_euclid_dist")
    return distance / math.sqrt(truths.shape[1])


def _with_blank(rows: Tensor, value: float) -> Tensor:
    return torch.cat([rows, rows.new_full((1, *rows.shape[1:]), value)])
