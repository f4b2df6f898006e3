"""Hypotheses of a text attack about lengths, labels and how these belong together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, permutations

import torch
from torch import nn

from attacks.base import Job
from attacks.observed.known_labels import known_labels
from attacks.observed.word_rows import noise_variance, standing_out
from fedsim.models.embeddings import embedding_names
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task

_SHORTEST = 3
"""Tokens of a sentence of one word, between start and end."""
_LABEL_ORDERS = 720
"""Most orders of the labels tried; more than six sentences have more."""
_MOST = 16
"""Most hypotheses, which compete for the first tenth of the steps."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One answer for all sentences of a batch.

    Attributes:
        lengths: tokens of each sentence, special tokens included.
        labels: class of each sentence; None where they are searched for.
    """

    lengths: tuple[int, ...]
    labels: tuple[int, ...] | None


def hypotheses(
    observation: Observation,
    task: Task,
    network: nn.Module,
    rng: torch.Generator,
    job: Job,
) -> list[Hypothesis]:
    """The distinct answers that the granted facts and the update leave open, at most sixteen.

    Granted lengths and labels are in no order, so that which label goes with which length is open.
    Where lengths are not granted, the rows of the position table that moved give the longest, which
    is then taken for all sentences; where that table was not sent, all lengths are tried. Labels
    are granted, else read from the head's gradient.
    """
    count = observation.knowledge.num_examples
    assert count is not None
    sizes = _lengths(observation, network, task, count)
    if not task.spec.num_classes:
        return [Hypothesis(size, None) for size in sizes][:_MOST]
    classes = known_labels(observation, task, rng, job).tolist()
    # Sentences of equal length are interchangeable, and so are equal labels.
    distinct: dict[Hypothesis, None] = {}
    for size in sizes:
        for order in islice(permutations(classes), _LABEL_ORDERS):
            pairs = sorted(zip(size, order, strict=True))
            distinct[Hypothesis(*map(tuple, zip(*pairs, strict=True)))] = None
    return list(distinct)[:_MOST]


def _lengths(
    observation: Observation, network: nn.Module, task: Task, count: int
) -> list[tuple[int, ...]]:
    if observation.knowledge.lengths is not None:
        return [tuple(observation.knowledge.lengths)]
    longest = task.spec.input_shape[0]
    # The last token of a causal language model predicts nothing, and its row does not move.
    still = task.spec.kind == "language-modelling"
    table = embedding_names(network).position
    if table is not None and table in observation.received:
        rows = observation.update([table])[table]
        places = standing_out(rows, noise_variance(rows))
        # RoBERTa and OPT count from 2.
        if len(places) and (length := int(places[-1] - places[0]) + 1 + still) <= longest:
            return [(length,) * count]
    return [(length,) * count for length in range(_SHORTEST, longest + 1)]
