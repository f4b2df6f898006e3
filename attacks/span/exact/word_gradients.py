"""The gradients of a batch's words in the adapters of the first layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.observed.calls import noted
from attacks.tokens.first_layers import FirstLayers, Layer
from fedsim.process import PROCESS

_CLOSE = 0.02  # added to a squared sine, so that a word's agreement is worth 3.9 nats at most
_EXACT = 1e-4  # largest squared sine of a word that a sentence explains
_TAKEN = 0.7  # least cosine of a word's gradient that a doubtful sentence takes off
_MOST = 0.5  # share of such words in a right sentence
_ROUNDING = 1e-6  # share of the largest gradient below which a word's is that of rounding
_DIRECTIONS = 16  # of a word's gradient by which next words are told
_CHUNK = 1024  # tokens in one pass

Line = tuple[int, ...]
Number = tuple[int, int]  # of a word at a place; -1 for any place


@dataclass(frozen=True)
class WordGradients:
    """What the words of a batch have for gradients, and how well sentences alone explain them.

    With ``y = W x + s B A x`` and ``g = dL/dy`` the update of ``A`` is ``sum d_t x_t^T`` of
    ``d_t = s B^T g_t``, the gradient of ``A x_t``. Where the inputs ``x`` of a batch's words are
    known and independent, ``d`` of each word is their only solution: the sum over its occurrences.
    In a causal model that of a token comes from its own sentence, so that a sentence is tested
    without the others of the batch, and a wrong word shows where it stands. What a prefix lacks
    of its tokens' gradients comes from later ones, most of all from the next three.

    Attributes:
        layers: of a causal language model with adapters.
        modules: the ``A`` of its first layer by name.
        rows: the row of each word.
        gradients: of each word in each module, float64 ``(word, rank)``.
        everywhere: whether a word has the same row at any place.
    """

    layers: FirstLayers
    modules: Mapping[str, nn.Module]
    rows: Mapping[Number, int]
    gradients: Sequence[Tensor]
    everywhere: bool

    @classmethod
    def of(
        cls,
        layers: FirstLayers,
        names: Sequence[str],
        gradients: Sequence[Tensor],
        words: Tensor,
        places: Tensor | None,
    ) -> WordGradients:
        """Of words ``(word,)`` at places ``(word,)``, None for any, by the names of all ``A``."""
        paths = [name.removesuffix(".weight") for name in names]
        modules = {path: layers.network.get_submodule(path) for path in paths}
        at = [-1] * len(words) if places is None else places.tolist()
        rows = {pair: row for row, pair in enumerate(zip(at, words.tolist(), strict=True))}
        return cls(layers, modules, rows, gradients, places is None)

    def agreement(self, lines: Sequence[Line]) -> tuple[Tensor, Tensor]:
        """How well sentences of one length explain the words in them.

        Returns:
            nats in favour of each ``(line,)``, and whether half of its words are explained up to
            rounding ``(line,)``: no word of a wrong sentence is, and of a right one all are that
            occur once in the batch.
        """
        ids = torch.tensor(lines, device=self.gradients[0].device)
        rows = torch.tensor(
            [[self._row(place, w) for place, w in enumerate(line)] for line in lines]
        )
        rows = rows[:, 1:-1]
        nats = torch.zeros(len(lines), dtype=torch.float64)
        worst = torch.zeros(rows.shape, dtype=torch.float64)
        if not rows.numel():
            return nats, nats > 0
        for module, guessed in zip(self.gradients, self._of_lines(ids), strict=True):
            seen = module[rows.clamp(min=0)]
            cosine = nn.functional.cosine_similarity(seen, guessed[:, 1:-1], dim=-1, eps=1e-30)
            cosine = cosine.clamp(0, 1).where(rows >= 0, 0)
            sines = 1 - cosine.square()
            nats += -((sines + _CLOSE) / (1 + _CLOSE)).log().sum(1)
            worst = worst.maximum(sines)
        return nats, (worst < _EXACT).double().mean(1) >= _MOST

    @torch.no_grad()
    def next_words(self, prefixes: Sequence[Line], words: Tensor) -> Tensor:
        """Nats ``(prefix, word)`` for each next word, by the gradient of a prefix's last token.

        It is that of the queries, which later tokens move least: ``J^T (p - e)`` with the softmax
        ``p``, the next word ``e`` and the derivative ``J`` of the logits.
        """
        ids = torch.tensor(prefixes, device=words.device)
        network: Any = self.layers.network
        head = network.get_output_embeddings()
        name = next(name for name, module in network.named_modules() if module is head)
        module, rank = next(iter(self.modules.values())), self.gradients[0].shape[1]
        rows = torch.tensor([self._row(len(line) - 1, line[-1]) for line in prefixes])
        seen = self.gradients[0]
        # Most of what the words differ in, if there are many directions.
        along = torch.linalg.svd(nn.functional.normalize(seen), full_matrices=False).Vh
        along = along[: min(rank, _DIRECTIONS)]

        def hook(_: nn.Module, __: object, output: Tensor) -> Tensor:
            tangent = torch.zeros_like(output)
            tangent[:, -len(along) :] = along.to(output)
            dual: Tensor = forward_ad.make_dual(output, tangent)
            return dual

        handle = module.register_forward_hook(hook)
        try:
            with forward_ad.dual_level(), PROCESS, sdpa_kernel(SDPBackend.MATH):
                last = ids[:, -1:].expand(-1, len(along))
                (states,) = self.layers.of_extensions([Layer((name,))], ids[:, :-1], last)
                primal, moved = forward_ad.unpack_dual(states)
        finally:
            handle.remove()
        slopes = head(moved) - (0 if head.bias is None else head.bias)
        shares = head(primal[:, :1]).softmax(-1)
        expected = (slopes * shares).sum(-1)[..., None] - slopes[..., words]
        given = (seen[rows.clamp(min=0)] @ along.T)[..., None]
        cosine = nn.functional.cosine_similarity(expected.double(), given, dim=1, eps=1e-30)
        cosine = cosine.clamp(0, 1).where(rows[:, None] >= 0, 0)
        nats: Tensor = -((1 - cosine.square() + _CLOSE) / (1 + _CLOSE)).log()
        return nats

    def without(self, line: Line, *, right: bool) -> WordGradients:
        """The same for the others of a batch, with what a sentence explains taken off.

        Of one that is not ``right`` these are the words whose gradients it has.
        """
        ids = torch.tensor([line], device=self.gradients[0].device)
        rows = torch.tensor([self._row(place, word) for place, word in enumerate(line)])
        named = rows >= 0
        sums = [
            torch.zeros_like(seen).index_add(0, rows[named], guessed[0][named])
            for seen, guessed in zip(self.gradients, self._of_lines(ids), strict=True)
        ]
        inner = torch.stack([(a * b).sum(1) for a, b in zip(self.gradients, sums, strict=True)])
        squares = torch.stack([a.square().sum(1) for a in sums])
        sizes = torch.stack([a.square().sum(1) for a in self.gradients])
        cosines = (inner / (squares * sizes).sqrt().clamp(min=1e-300)).mean(0)
        words = rows[named].unique()
        # A word that occurs once shows the scale of the update; of others it differs.
        scale = (inner.sum(0) / squares.sum(0).clamp(min=1e-300))[words].median()
        taken = torch.zeros(len(cosines), dtype=torch.bool)
        taken[words if right else words[cosines[words] > _TAKEN]] = True
        gradients = [
            seen - scale * alone.where(taken[:, None], 0)
            for seen, alone in zip(self.gradients, sums, strict=True)
        ]
        return replace(self, gradients=gradients)

    def _row(self, place: int, word: int) -> int:
        return self.rows.get((-1 if self.everywhere else place, word), -1)

    def _of_lines(self, ids: Tensor) -> list[Tensor]:
        """The gradients that tokens have by their own sentences, of each module."""
        parts = [self._of_part(part) for part in ids.split(max(1, _CHUNK // ids.shape[1]))]
        return [torch.cat(each).double() for each in zip(*parts, strict=True)]

    def _of_part(self, ids: Tensor) -> list[Tensor]:
        network: Any = self.layers.network
        with torch.enable_grad(), noted(self.modules) as calls:
            logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            )
        return list(torch.autograd.grad(loss, [call.output for call in calls]))


def solved(matrices: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """The gradient of each word ``(word, rank)`` in each update ``(rank, width)`` of an ``A``.

    Args:
        matrices: the updates.
        inputs: of the words, independent rows ``(word, width)``.
    """
    rows = inputs.double().T
    return [torch.linalg.lstsq(rows, matrix.double().T).solution for matrix in matrices]


def present(gradients: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Which words ``(word,)`` have a gradient beyond the rounding of the others'."""
    sizes = torch.cat([*gradients], 1).norm(dim=1) * inputs.double().norm(dim=1)
    beyond: Tensor = sizes > _ROUNDING * sizes.max()
    return beyond
