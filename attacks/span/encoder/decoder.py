"""Sentences of a bidirectional model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.base import Job
from attacks.proofs.consistency import support
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.encoder.proposals import Sources
from attacks.span.encoder.settled_lines import settled_lines
from attacks.span.encoder.word_search import WordGuess, WordSearch
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.table_rows import TableRows
from attacks.tokens.word_clusters import WordClusters
from fedsim.capture import Observation

_WORDS_TRIED = 20  # words of a blurred update tried for each sentence
_SETTLED = 4  # lines that settle above the noise, for each sentence
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
    possible = observation.knowledge.lengths or range(_SHORTEST, task.max_length + 1)
    settled: list[Tensor] = []
    whole = all(reading.complete and not reading.signs for reading in traces.readings.values())
    if count > 1 and whole and not observation.knowledge.train_mode:
        tokens = _candidates(traces, rows, edges, count)
        usable = [length for length in possible if length <= len(tokens)]
        update, most = observation.update(), _SETTLED * count
        settled = settled_lines(traces.layers, update, tokens, edges[-1], usable, most, job)
    search = WordSearch(
        sources,
        sources.proposals(count),
        _clusters(observation, traces, edges, count, job) if count > 1 else None,
        GradientMatcher.of(observation, task, traces.words.device, signs=traces.signs),
        task.spec.num_classes or 1,
        possible,
        bool(observation.knowledge.train_mode),
    )
    layers = (traces.layers.tokens, traces.layers.contexts[0])
    names = [name for layer in layers for name in layer.weights(observation.received)]
    guess = search.chosen(settled, count, names)
    if not guess.lines or not _explains(model, guess):
        guess = search.run(count, job, guess)
    return [line.tolist() for line in guess.lines], list(guess.labels)


def _explains(model: AttackedModel, guess: WordGuess) -> bool:
    """Whether noise explains what these sentences leave of the update."""
    given = [line.tolist() for line in guess.lines]
    proof = support(model.observation, model.task, model.network, given, guess.labels)
    return proof != "guess"


def _candidates(
    traces: SoftTraces, rows: TableRows | None, edges: list[int], count: int
) -> list[Tensor]:
    """The words whose rows stand out of the noise at each place, else the likeliest ones."""
    start, end = (traces.words.new_tensor([edge]) for edge in (edges[0], edges[-1]))
    if rows is None:
        return _likely(traces, start, end, count)
    alive = [part.square().sum(1) > rows.edge for part in (rows.words, rows.places)]
    words, places = (torch.nonzero(part)[:, 0] for part in alive)
    last = int(places.max()) if len(places) else 0
    words = torch.cat([words.to(end), end]).unique()
    return [start, *[words[words != start]] * last]


def _likely(traces: SoftTraces, start: Tensor, end: Tensor, count: int) -> list[Tensor]:
    """The likeliest words of the batch at every place."""
    near = traces.statistics[1:].amin(0)
    likely = near.topk(_WORDS_TRIED * count, largest=False).indices
    words = torch.cat([likely[near[likely].isfinite()], end]).unique()
    return [start, *[words[words != start]] * (len(traces.statistics) - 1)]


def _clusters(
    observation: Observation, traces: SoftTraces, edges: list[int], count: int, job: Job
) -> WordClusters | None:
    """Which of the likeliest words of the batch share a sentence."""
    if traces.first is None:
        return None
    start, end = (traces.words.new_tensor([edge]) for edge in (edges[0], edges[-1]))
    tokens = _likely(traces, start, end, count)
    return WordClusters.of(traces.layers, observation.update(), tokens, edges[-1], job)
