"""The words nearest to a span at every position, where inputs are normalised sums."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.tokens.adapters import AdapterSpan
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.subspace import Subspace
from attacks.tokens.summed_inputs import last_norm, summed

_CHUNK = 1 << 12  # words at once


def nearest_words(
    layers: FirstLayers, subspace: Subspace, vocabulary: Tensor, positions: int, count: int
) -> Tensor | None:
    """The ``count`` ids at each position by ``rough_distance``, int64 ``(position, word)``.

    None where the inputs of the first layer are no normalised sums of words and positions.

    The input of a word at a position is ``x = g (e + p) / s + b``, with the centred embeddings
    ``e`` and ``p``, the normalisation's weight ``g`` and bias ``b``, and ``s`` the deviation of
    ``e + p``. Its length and its part in the span are made of products of ``e`` and ``p``, so that
    one pass through the network and a matrix product replace a pass for each position.
    """
    norm = None if isinstance(subspace, AdapterSpan) else last_norm(layers, vocabulary[:1])
    if norm is None:
        return None
    places = torch.arange(positions, device=vocabulary.device)
    moved, other = (
        summed(layers, norm, word.expand(positions), places)[0] for word in vocabulary[[0, -1]]
    )
    if (moved - moved[0] - other + other[0]).norm() > CUTS.sum_error * other.norm():
        return None
    moved = _centred(moved - moved[0])
    scale, shift = norm.weight.detach(), norm.bias.detach()
    outside = subspace.outside
    inside = outside is None or subspace.rank < outside.shape[1]
    onto = (subspace.basis if outside is None or inside else outside).to(moved)
    best_sines, best = moved.new_zeros(positions, 0), vocabulary.new_zeros(positions, 0)
    for part in vocabulary.split(_CHUNK):
        words = _centred(summed(layers, norm, part, 0)[0])
        deviation = (_squares(words, moved) / words.shape[1] + norm.eps).sqrt()
        words, there = words * scale, moved * scale
        total = _lengths(words, there, shift, deviation)
        share = _lengths(words @ onto, there @ onto, shift @ onto, deviation) / total
        sines = torch.cat([best_sines, 1 - share if inside else share], 1)
        ids = torch.cat([best, part.expand(positions, -1)], 1)
        best_sines, at = sines.topk(min(count, sines.shape[1]), dim=1, largest=False)
        best = ids.gather(1, at)
    return best


def _centred(sums: Tensor) -> Tensor:
    return sums - sums.mean(1, keepdim=True)


def _squares(words: Tensor, places: Tensor) -> Tensor:
    """Squared lengths of the sums of each place and each word ``(place, word)``."""
    separate = words.square().sum(1) + places.square().sum(1, keepdim=True)
    return separate + 2 * places @ words.T


def _lengths(words: Tensor, places: Tensor, shift: Tensor, deviation: Tensor) -> Tensor:
    """Squared lengths of ``(word + place) / deviation + shift``, ``(place, word)``."""
    along = words @ shift + (places @ shift)[:, None]
    return _squares(words, places) / deviation.square() + 2 * along / deviation + shift @ shift
