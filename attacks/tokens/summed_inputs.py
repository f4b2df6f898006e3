"""Inputs of the first layer that are normalised sums of a word's and a position's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.observed.calls import noted
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers


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
        if (whole - seen).norm() > CUTS.sum_error * seen.norm():
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
