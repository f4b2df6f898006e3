"""Pseudo rows with the statistics of the attacker's own: Learning To Invert off-distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from attacks.observed.pixel_prior import cosines
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch

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
