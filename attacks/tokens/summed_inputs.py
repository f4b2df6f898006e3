"""Inputs of the first layer that are normalised sums of a word's and a position's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.observed.calls import noted
from attacks.tokens.adapters import AdapterSpan
from attacks.tokens.attention_inputs import SUM_ERROR
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.subspace import Subspace

_CHUNK = 1 << 12  # words at once


@dataclass(frozen=True)
class SummedInputs:
    """Inputs of the first layer for words at positions, and the sums that they are made of.

    Attributes:
        words: token ids.
        word, place: of each node, int64 ``(node,)``.
        inputs: of each node ``(node, width)``.
        atoms: directions that all inputs are combinations of ``(atom, width)``, the words' first.
    """

    words: list[int]
    word: Tensor
    place: Tensor
    inputs: Tensor
    atoms: Tensor

    @classmethod
    def of(cls, layers: FirstLayers, tokens: Sequence[Tensor]) -> SummedInputs | None:
        """None where the inputs are no normalised sums of words and positions."""
        norm = last_norm(layers, tokens[-1][:1])
        if norm is None:
            return None
        words = torch.cat(list(tokens)).unique()
        sums, _ = summed(layers, norm, words, 0)
        first = [summed(layers, norm, words[:1], p)[0] for p in range(len(tokens))]
        moved = torch.cat(first) - sums[:1]
        at = [torch.searchsorted(words, part) for part in tokens]
        parts = [summed(layers, norm, part, p) for p, part in enumerate(tokens)]
        whole = torch.cat([sums[ids] + moved[p] for p, ids in enumerate(at)])
        seen = torch.cat([part for part, _ in parts])
        if (whole - seen).norm() > SUM_ERROR * seen.norm():
            return None
        scale, shift = norm.weight.detach(), norm.bias.detach()
        centred = torch.cat([sums, moved[1:]])
        centred = (centred - centred.mean(1, keepdim=True)) * scale
        return cls(
            words.tolist(),
            torch.cat(at),
            torch.cat([torch.full_like(ids, p) for p, ids in enumerate(at)]),
            torch.cat([inputs for _, inputs in parts]),
            torch.cat([centred, shift[None]]),
        )

    @property
    def allowed(self) -> Tensor:
        """Which word may stand at which place, bool ``(word, place)``; CPU."""
        table = torch.zeros(len(self.words), int(self.place.max()) + 1, dtype=torch.bool)
        table[self.word.cpu(), self.place.cpu()] = True
        return table

    def node(self, word: int, place: int) -> Tensor:
        """The number of a word's node at a place ``(1,)``; empty if it is no candidate there."""
        return torch.nonzero((self.word == word) & (self.place == place))[:, 0]


def last_norm(layers: FirstLayers, word: Tensor) -> nn.LayerNorm | None:
    """The normalisation whose output is the input of the first layer."""
    for module in layers.network.modules():
        if not isinstance(module, nn.LayerNorm) or module.weight is None or module.bias is None:
            continue
        with noted({"norm": module}) as calls:
            inputs = layers.of_tokens(word, 0)
        if calls and torch.equal(calls[0].output[:, 0], inputs):
            return module
    return None


def summed(
    layers: FirstLayers, norm: nn.LayerNorm, words: Tensor, position: int | Tensor
) -> tuple[Tensor, Tensor]:
    """What the normalisation receives and the first layer's inputs, both ``(word, width)``."""
    with noted({"norm": norm}) as calls:
        inputs = layers.of_tokens(words, position)
    return calls[0].input[:, 0], inputs


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
    if (moved - moved[0] - other + other[0]).norm() > SUM_ERROR * other.norm():
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
