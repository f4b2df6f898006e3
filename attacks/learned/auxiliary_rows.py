"""The attacker's own rows: those held out, those to train on, and rows made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import torch

from attacks.observed.pixel_prior import cosines
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch, joined

Source: TypeAlias = Literal["rows", "dct", "unigram", "rows+unigram"]
HELDOUT = 0.1
"""Share of the auxiliary rows that choose the epoch and are not trained on."""


def with_classes(rows: Batch, task: Task, seed: int) -> Batch:
    """The rows with classes of the task: drawn at random where they are those of other data."""
    classes = task.spec.num_classes
    # Texts without labels are all of class 0.
    if not classes or (int(rows.labels.max()) < classes and len(rows.labels.unique()) > 1):
        return rows
    drawn = torch.randint(classes, rows.labels.shape, generator=generator(seed, "classes"))
    return replace(rows, labels=drawn)


def split_rows(rows: Batch, most: int, examples: int, seed: int) -> tuple[Batch, Batch]:
    """The auxiliary rows that are held out, and those to train on; drawn by the seed.

    Args:
        rows: all of them.
        most: how many to use; 0 for all.
        examples: in a batch.
        seed: of the draw.

    Raises:
        CannotAttack: there are too few.
    """
    order = torch.randperm(len(rows), generator=generator(seed, "rows"))
    rows = rows[order[: most or len(order)]]
    held = max(examples, int(HELDOUT * len(rows)))
    if len(rows) - held < 2 * examples:
        raise CannotAttack(
            f"{len(rows)} auxiliary rows are too few for batches of {examples} to learn from and "
            "to be held out",
            "Raise auxiliary.rows, or the attack's size.",
        )
    return rows[:held], rows[held:]


def made_rows(rows: Batch, task: Task, source: Source, count: int, axes: Axes, seed: int) -> Batch:
    """The rows to train on: as they are, or pseudo rows beside them or, of texts, instead of them.

    Args:
        rows: those to train on.
        task: of the rows.
        source: what to make.
        count: pseudo rows; 0 for as many as rows.
        axes: see ``attacks.learned.auxiliary_rows``.
        seed: of what is drawn.

    Raises:
        CannotAttack: the source makes no rows of this task.
    """
    if source == "rows":
        return rows
    count, rng = count or len(rows), generator(seed, "pseudo")
    if (source == "dct") != (task.modality == "image"):
        other = "dct" if task.modality == "image" else "unigram"
        raise CannotAttack(
            f"auxiliary: {source!r} rows are no {task.modality}s",
            f"Choose {other!r}, or 'rows'.",
        )
    if source != "dct":
        drawn = unigram_texts(rows, count, task.spec.special_ids, rng)
        return drawn if source == "unigram" else joined([rows, drawn])
    return joined([rows, dct_images(rows, count, task.spec.num_classes, rng, axes)])


def with_mirrored(rows: Batch) -> Batch:
    """Images, and then the same mirrored from left to right."""
    return joined([rows, replace(rows, inputs=rows.inputs.flip(-1))])


Axes: TypeAlias = Literal["height-width", "none"]


def dct_images(
    rows: Batch, count: int, num_classes: int, rng: torch.Generator, axes: Axes = "height-width"
) -> Batch:
    """Images whose cosine coefficients are independent Gaussians, and uniform classes.

    Wu et al. 2022 ("Learning To Invert"): the two-dimensional orthonormal DCT-II of each channel,
    mean and standard deviation of each coefficient over the rows, draws with those, inverse DCT.
    The authors' code transforms the width and the colour of images that it stores as ``(height,
    width, channel)``, so that neighbouring lines have nothing in common, and lets bytes out of
    range wrap around; here pixels are clamped to [0, 1].

    Args:
        rows: images float32 ``(row, channel, height, width)``.
        count: images to draw.
        num_classes: of the task.
        rng: on the CPU.
        axes: what is transformed; ``none`` is the paper's comparison, a Gaussian in pixel space.
    """
    coefficients = rows.inputs if axes == "none" else cosines(rows.inputs)
    mean, std = coefficients.mean(0), coefficients.std(0, correction=0)
    drawn = mean + std * torch.randn(count, *mean.shape, generator=rng)
    if axes != "none":
        drawn = cosines(drawn, inverse=True)
    return Batch(drawn.clamp(0, 1), torch.randint(num_classes, (count,), generator=rng))


def unigram_texts(rows: Batch, count: int, special: Sequence[int], rng: torch.Generator) -> Batch:
    """Texts of independent tokens, as frequent as in the rows; classes as frequent, too.

    Wu et al. 2022. Each text takes its length and its special tokens from a row drawn at random,
    where the paper's are all of one length. The class is drawn apart from the text; targets of a
    causal language model are its tokens.

    Args:
        rows: token ids with mask, and classes ``(row,)`` or targets ``(row, token)``.
        count: texts to draw.
        special: ids that are no words, as in ``TaskSpec.special_ids``.
        rng: on the CPU.
    """
    assert rows.mask is not None
    is_word = (rows.mask == 1) & ~torch.isin(rows.inputs, torch.tensor(special))
    frequency = rows.inputs[is_word].bincount().double()
    layout = torch.randint(len(rows), (count,), generator=rng)
    inputs, places = rows.inputs[layout], is_word[layout]
    inputs[places] = torch.multinomial(
        frequency, int(places.sum()), replacement=True, generator=rng
    )
    if rows.labels.dim() == 1:
        labels = rows.labels[torch.randint(len(rows), (count,), generator=rng)]
    else:
        labels = inputs.where(rows.labels[layout] != IGNORED, IGNORED)
    return Batch(inputs, labels, rows.mask[layout])
