"""Sentences of a bidirectional model decoded from an update whose span a defense has blurred."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.spectrum import spectrum
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.encoder.proposals import Sources
from attacks.span.encoder.word_search import WordSearch
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.attention_inputs import AttentionInputs
from attacks.tokens.evidence import FEWEST_DIRECTIONS
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.sine_descent import SineDescent
from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.span_membership import SpanTest
from attacks.tokens.subspace import Subspace
from attacks.tokens.table_rows import TableRows
from attacks.tokens.word_clusters import WordClusters
from attacks.tokens.word_places import WordPlaces
from fedsim.types import Tensors

_WORDS_TRIED = 20  # words of a blurred update tried for each sentence
_SETTLED = 4  # lines that settle above the noise, for each sentence
_SHORTEST = 3  # tokens


def decode(
    model: AttackedModel, traces: SoftTraces, rows: TableRows | None, job: Job
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Guesses of an encoder's sentences, with their classes; none where nothing tells.

    The first are lines that settle above the noise, if there are enough. Who asks for the next,
    which takes a search, has found them wrong.

    Args:
        model: a classifier.
        traces: of the update.
        rows: of its embedding tables, if they were sent.
        job: ends the search when its time is up.
    """
    observation, task = model.observation, model.task
    edges, count = task.tokens([""])[0], observation.knowledge.num_examples or 1
    if len(edges) < 2 or (traces.first is None and rows is None):
        return
    sources = Sources(traces, rows, edges[0], edges[-1])
    possible = observation.knowledge.lengths or range(_SHORTEST, task.max_length + 1)
    update, settled = observation.update(), list[Tensor]()
    clusters = _clusters(update, traces, edges, count, job) if count > 1 else None
    whole = all(reading.complete and not reading.signs for reading in traces.readings.values())
    if count > 1 and whole and not observation.knowledge.train_mode:
        tokens = _candidates(traces, rows, edges, count)
        usable = [length for length in possible if length <= len(tokens)]
        most = _SETTLED * count
        settled = _settled_lines(traces.layers, update, tokens, edges[-1], usable, most, job)
    search = WordSearch(
        sources,
        sources.proposals(count),
        clusters,
        GradientMatcher.of(observation, task, traces.words.device, signs=traces.signs),
        task.spec.num_classes or 1,
        possible,
        bool(observation.knowledge.train_mode),
    )
    names = [*traces.weights, *traces.layers.contexts[0].weights(observation.received)]
    guess = search.chosen(settled, count, names)
    if guess.lines:
        yield [line.tolist() for line in guess.lines], list(guess.labels)
    guess = search.run(count, job, guess)
    yield [line.tolist() for line in guess.lines], list(guess.labels)


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


def _settled_lines(
    layers: FirstLayers,
    update: Tensors,
    tokens: Sequence[Tensor],
    stop: int,
    lengths: Sequence[int],
    most: int,
    job: Job,
) -> list[Tensor]:
    """The lines of least mean sine near its local minima ``(token,)`` each.

    Noise turns the span of the layer behind the attention, and hides its weakest directions. Under
    a tenth of the gradient the true sentences of four have a mean sine of .1 to the rest, and of .2
    with one wrong word: too far for a proof, near enough for a descent.

    Args:
        layers: of an encoder.
        update: weight gradients by name, each entry sent.
        tokens: the candidates at each position, the start at the first.
        stop: the token that ends each sentence.
        lengths: of a sentence.
        most: of the lines.
        job: ends the descent when its time is up.
    """
    layer = layers.contexts[0]
    if not lengths or not all(
        f"{name}.weight" in update for name in (*layer.modules, *layers.tokens.modules)
    ):
        return []
    known = AttentionInputs.of(layers, layer, tokens, job)
    places = WordPlaces.of(layers, update, tokens, stop)
    clusters = WordClusters.of(layers, update, tokens, stop, job, places)
    side = layer.side(update).double()
    seen = spectrum(side, min(side.shape))
    if known is None or clusters is None or seen.rank < FEWEST_DIRECTIONS:
        return []
    test = SpanTest(layers, layer, Subspace(seen.basis, min(side.shape)), known)
    descent = SineDescent(test, tokens, stop, lengths, clusters)
    return [tokens[0].new_tensor(line) for line in descent.nearest(most, job)]


def _clusters(
    update: Tensors, traces: SoftTraces, edges: list[int], count: int, job: Job
) -> WordClusters | None:
    """Which of the likeliest words of the batch share a sentence."""
    if traces.first is None:
        return None
    start, end = (traces.words.new_tensor([edge]) for edge in (edges[0], edges[-1]))
    tokens = _likely(traces, start, end, count)
    return WordClusters.of(traces.layers, update, tokens, edges[-1], job)
