"""Sentences of a bidirectional model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

import torch

from attacks.base import Job
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.encoder.proposals import Sources
from attacks.span.encoder.word_search import WordSearch
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.table_rows import TableRows
from attacks.tokens.word_clusters import WordClusters
from fedsim.capture import Observation

_WORDS_TRIED = 20  # words of a blurred update tried for each sentence

_SHORTEST = 3  # tokens


def decode(
    model: AttackedModel, traces: SoftTraces, rows: TableRows | None, job: Job
) -> tuple[list[list[int]], list[int]]:
    """The likeliest sentences of an encoder, with their classes; none where nothing tells.

    Args:
        model: a classifier.
        traces: of the update.
        rows: of its embedding tables, if they were sent.
        job: ends the search when its time is up.
    """
    observation, task = model.observation, model.task
    edges, count = task.tokens([""])[0], observation.knowledge.num_examples or 1
    if len(edges) < 2 or (traces.first is None and rows is None):
        return [], []
    sources = Sources(traces, rows, edges[0], edges[-1])
    search = WordSearch(
        sources,
        sources.proposals(count),
        _clusters(observation, traces, edges, count, job) if count > 1 else None,
        GradientMatcher.of(observation, task, traces.words.device, signs=traces.signs),
        task.spec.num_classes or 1,
        observation.knowledge.lengths or range(_SHORTEST, task.max_length + 1),
        bool(observation.knowledge.train_mode),
    )
    guess = search.run(count, job)
    return [line.tolist() for line in guess.lines], list(guess.labels)


def _clusters(
    observation: Observation, traces: SoftTraces, edges: list[int], count: int, job: Job
) -> WordClusters | None:
    """Which of the likeliest words of the batch share a sentence."""
    if traces.first is None:
        return None
    start, end = (traces.words.new_tensor([edge]) for edge in (edges[0], edges[-1]))
    near = traces.statistics[1:].amin(0)
    likely = near.topk(_WORDS_TRIED * count, largest=False).indices
    words = torch.cat([likely[near[likely].isfinite()], end]).unique()
    tokens = [start, *[words[words != start]] * (len(traces.statistics) - 1)]
    return WordClusters.of(traces.layers, observation.update(), tokens, edges[-1], job)
