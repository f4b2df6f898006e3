"""Sentences of an encoder's batch that settle in what of a span stands above the noise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attacks.base import Job
from attacks.observed.spectrum import spectrum
from attacks.tokens.attention_inputs import AttentionInputs
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.sine_descent import SineDescent
from attacks.tokens.span_membership import SpanTest
from attacks.tokens.subspace import Subspace
from attacks.tokens.word_clusters import WordClusters
from attacks.tokens.word_places import WordPlaces
from fedsim.types import Tensors


def settled_lines(
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
    side = layers.side(layer, update).double()
    seen = spectrum(side, min(side.shape))
    if known is None or clusters is None or seen.rank < CUTS.fewest_directions:
        return []
    test = SpanTest(layers, layer, Subspace(seen.basis, min(side.shape)), known)
    descent = SineDescent(test, tokens, stop, lengths, clusters)
    return [tokens[0].new_tensor(line) for line in descent.nearest(most, job)]
