"""Inputs of the layer behind the first attention, without a pass of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Job
from attacks.tokens.first_layers import FirstLayers, Layer

_MOST = 1 << 27  # numbers in a table, half a gigabyte
_LETTERS = "qkv"
SUM_ERROR = 1e-4
"""Error of inputs that are sums of words and positions, as a share of their norm."""


@dataclass(frozen=True)
class AttentionInputs:
    """What the first attention makes of sentences of known words.

    Query, key and value of a token depend on its word and its place alone. They are computed once
    for every word at every place, and a sentence costs its attention: a tenth of a pass through the
    first block.

    Attributes:
        words: token ids in order.
        outputs: query, key and value of each ``(word, place, 3, head, size)``.
        job: counts the tokens.
    """

    words: Tensor
    outputs: Tensor
    job: Job

    @classmethod
    def of(
        cls, layers: FirstLayers, layer: Layer, tokens: Sequence[Tensor], job: Job
    ) -> AttentionInputs | None:
        """Those of the candidates at each position, the start at the first.

        None where the layer is not straight behind an attention with heads of plain products.
        """
        names, heads = [named(layers, letter) for letter in _LETTERS], heads_of(layers)
        words = torch.cat(list(tokens)).unique()
        if not all(names) or not heads or layers.everywhere:
            return None
        modules = [layers.network.get_submodule(name) for name in names]
        first = layers.of_tokens(words[:1], 0)
        if len(words) * len(tokens) * len(modules) * first.shape[1] > _MOST:
            return None
        with torch.no_grad():
            inputs = torch.stack([layers.of_tokens(words, p) for p in range(len(tokens))], 1)
            outputs = torch.stack([module(inputs) for module in modules], 2)
        table = cls(words, outputs.unflatten(3, (heads, -1)), job)
        return table if table._agrees(layers, layer, tokens) else None

    def inputs(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``(sentence, token, width)`` as those of ``FirstLayers.of_sentences``."""
        self.job.done += ids.numel()
        places = torch.arange(ids.shape[1], device=ids.device)
        outputs = self.outputs[torch.searchsorted(self.words, ids), places]
        query, key, value = outputs.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, mask.bool()[:, None, None])
        return seen.transpose(1, 2).flatten(2)

    def _agrees(self, layers: FirstLayers, layer: Layer, tokens: Sequence[Tensor]) -> bool:
        """Whether the network has the same inputs for two sentences."""
        line = torch.stack([part[-1] for part in tokens])
        ids, mask = torch.stack([line, line]), torch.ones_like(line).repeat(2, 1)
        mask[1, (len(line) + 1) // 2 :] = 0
        with torch.no_grad():
            true, mine = layers.of_sentences(layer, ids, mask), self.inputs(ids, mask)
        if true.shape != mine.shape:
            return False
        error = ((true - mine) * mask[..., None]).norm()
        return bool(error < SUM_ERROR * true.norm())


def named(layers: FirstLayers, letter: str) -> str:
    """The query's or key's name: ``query``, ``q_lin``, ``attn.q``; empty if there is none."""
    names = [name for name in layers.tokens.modules if name.split(".")[-1].startswith(letter)]
    return names[0] if len(names) == 1 else ""


def heads_of(layers: FirstLayers) -> int | None:
    """The number of attention heads that the network's configuration names."""
    heads = getattr(getattr(layers.network, "config", None), "num_attention_heads", None)
    return heads if isinstance(heads, int) else None
