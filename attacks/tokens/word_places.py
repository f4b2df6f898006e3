"""Places of a batch's words, told by the gradients of the first layer and the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.summed_inputs import SummedInputs
from fedsim.models.embeddings import embedding_names
from fedsim.types import Tensors

_ONCE = 0.7  # share of a place from which a word stands there, and hardly elsewhere
_ELSEWHERE = 0.3  # least share of another place of such a word, of its largest
_UNSURE = -0.4  # a word with a smaller share is too like others to be placed


@dataclass(frozen=True)
class WordPlaces:
    """Which places of a batch the words take, as a regression of places' gradients on words'.

    The input of a token is a normalised sum of a word's and a position's embeddings, so that its
    term of the gradient, ``(dL/dy_t) x_t^T``, is added to the word's and to the position's alike.
    Both sums follow by least squares, and those of the embedding tables are their rows. The sum of
    a position is that of its tokens'. So a regression on all words' gives a word that stands once
    a share of 1 at its place; one that stands several times is shared among its places.

    Attributes:
        words: token ids in order.
        shares: of each word at each place ``(word, place)``, CPU; 0 at the first.
        stop: the token that ends each sentence, at several places.
    """

    words: Tensor
    shares: Tensor
    stop: int

    @classmethod
    def of(
        cls, layers: FirstLayers, update: Tensors, tokens: Sequence[Tensor], stop: int
    ) -> WordPlaces | None:
        """Those of an encoder; None where inputs are no such sums, or gradients are missing.

        Args:
            layers: of an encoder.
            update: weight gradients by name.
            tokens: the candidates at each position, the start at the first.
            stop: the token that ends each sentence.
        """
        names = [f"{name}.weight" for name in layers.tokens.modules]
        table = SummedInputs.of(layers, tokens) if all(name in update for name in names) else None
        if table is None:
            return None
        atoms, words = table.atoms.double().cpu(), torch.tensor(table.words)
        gradient = torch.cat([update[name] for name in names]).to(atoms)
        sums = torch.linalg.lstsq(atoms.T, gradient.T, driver="gelsd").solution
        terms = [(sums[: len(words)], sums[len(words) : -1])]
        rows = embedding_names(layers.network)
        if layers.places is not None and {rows.word, rows.position} <= update.keys():
            assert rows.word is not None
            assert rows.position is not None
            word, place = (update[name].to(atoms) for name in (rows.word, rows.position))
            terms.append((word[words], place[layers.places[1 : len(tokens)].cpu()]))
        parts = [[part / word.norm() for part in (word, place)] for word, place in terms]
        by_word, by_place = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        shares = torch.linalg.lstsq(by_word.T, by_place.T, driver="gelsd").solution
        return cls(words, torch.cat([torch.zeros_like(shares[:, :1]), shares], 1), stop)

    def narrowed(self, tokens: Sequence[Tensor]) -> list[Tensor]:
        """The candidates at each position, without words that stand at another one alone."""
        most = self.shares.max(1, keepdim=True).values
        open_words = (most < _ONCE) | (self.shares.amin(1, keepdim=True) < _UNSURE)
        open_words |= (self.words == self.stop)[:, None]
        stands = open_words | (self.shares >= _ELSEWHERE * most)
        narrow = [tokens[0]]
        for place, part in enumerate(tokens[1:], 1):
            some = part[stands[torch.searchsorted(self.words, part.cpu()), place].to(part.device)]
            narrow.append(some if len(some) else part)
        return narrow

    def of_words(self, ids: Tensor) -> Tensor:
        """The shares of some of the words ``(word, place)``, between 0 and 1."""
        return self.shares[torch.searchsorted(self.words, ids)].clamp(0, 1)
