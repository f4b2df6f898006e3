"""The attacker's own rows: those held out, those to train on, and rows made from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import torch

from attacks.learned.pseudo import Axes, dct_images, unigram_texts
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.tasks.base import Task
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
        axes: see ``attacks.learned.pseudo``.
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
