"""What the rows of both embedding tables say of the words of a batch and of their places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import normalize

from attacks.observed.readings import read
from attacks.observed.word_rows import noise_variance
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import LEAST_NOISE
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import Embeddings
from fedsim.types import Tensors

_WORDS = 2  # rows of most energy that are looked at, for each place of a sentence
_NEAR = 6  # and at each of them
_FEWEST = 4  # such rows from which sentences are told apart
_ROW_LEVEL = 0.01
"""P-value of the strongest row of noise, below which the embedding tables tell."""


@dataclass(frozen=True)
class TableRows:
    """Rows of the word and position tables that the sentences of a batch share.

    The row of a word is the sum of the loss gradients ``delta`` at its places, that of a place the
    sum over the sentences. Both tables together are hence ``X^T D`` for one-hot ``X``, one token
    and one place in each row, as the gradient of the first layer is for its inputs.

    Attributes:
        words: ``(word, width)``.
        places: ``(place, width)``, of the places that a sentence uses.
        noise: variance of an entry.
        names: of the tables.
        used: rows of the position table that ``places`` are.
    """

    words: Tensor
    places: Tensor
    noise: float
    names: Embeddings
    used: Tensor

    @property
    def tells(self) -> bool:
        """Whether the energy of any row is more than that of noise."""
        return bool((torch.cat([self.words, self.places]).square().sum(1) > self.edge).any())

    @property
    def edge(self) -> float:
        """Energy that the strongest of all rows of noise exceeds with probability ``row_level``."""
        rows = len(self.words) + len(self.places)
        return self.noise * float(chi2.isf(_ROW_LEVEL / rows, self.words.shape[1]))

    def without(self, others: Tensors) -> TableRows:
        """The rows less those of other sentences, as far as they were sent."""
        assert self.names.word is not None
        assert self.names.position is not None
        words, places = others[self.names.word], others[self.names.position][self.used]
        return replace(
            self,
            words=self.words - words * (self.words != 0),
            places=self.places - places * (self.places != 0),
        )

    def shortlist(self, count: int) -> Tensor:
        """Words of the strongest rows, alone and together with that of a place, ``(token,)``."""
        energy = self.words.square().sum(1)
        alive = int((energy > 0).sum())
        near = energy / 2 + self.places @ self.words.T
        strongest = [
            energy.topk(min(_WORDS * count * len(self.places), alive)).indices,
            near.topk(min(_NEAR * count, alive), dim=1).indices.flatten(),
        ]
        tokens: Tensor = torch.cat(strongest).unique()
        return tokens

    def parts(self, tokens: Tensor) -> list[Tensor]:
        """Tokens that may belong to one sentence, as masks ``(token,)``.

        Within a sentence the gradients share what the pooled output adds to each. Between
        sentences that has another sign if the classes differ, and another size if not.
        """
        rows = self.words[tokens]
        energy = rows.square().sum(1)
        clear = energy > self.edge
        if int(clear.sum()) < _FEWEST:
            return []
        unit = normalize(rows, eps=1e-30)
        direction = torch.linalg.eigh(unit[clear].T @ unit[clear]).eigenvectors[:, -1]
        sizes = energy.clamp(min=float(energy[clear].min())).log()
        parts = []
        for values in (unit @ direction, sizes):
            high = values > _threshold(values[clear])
            parts += [high, ~high]
        return parts

    def weights(self, tokens: Tensor) -> Tensor:
        """How often each token occurs at each place, ``(place, token)``, by ridge regression."""
        rows = self.words[tokens]
        table = rows @ rows.T
        table.diagonal().add_(self.words.shape[1] * self.noise)
        weights: Tensor = torch.linalg.solve(table, rows @ self.places.T).T
        return weights

    def gram(self, tokens: Tensor) -> Tensor:
        """Inner products of the rows of tokens, then those of places, ``(row, row)``."""
        rows = torch.cat([self.words[tokens], self.places])
        return rows @ rows.T


def _threshold(values: Tensor) -> float:
    """The border of two clusters on a line with least variance within them."""
    values = values.sort().values
    count = torch.arange(1, len(values)).to(values)
    below, total = values.cumsum(0)[:-1], values.sum()
    between = below.square() / count + (total - below).square() / (len(values) - count)
    best = int(between.argmax())
    return float(values[best] + values[best + 1]) / 2


def table_rows(model: AttackedModel) -> TableRows | None:
    """The rows as received; None where they are not sent, or do not tell words from places.

    Args:
        model: an encoder, its update of any optimizer and defense.
    """
    places, observation = model.usual_layers.places, model.observation
    if places is None:
        return None
    try:
        tables = model.tables
    except CannotAttack:
        return None
    if tables.tied or not len(tables.positions) or not bool(tables.words.any()):
        return None
    optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
    seen = read(tables.words, optimizer)
    words = seen.value if seen.signs else tables.words
    rows = tables.positions[places].to(words)
    rows = rows.sign() if seen.signs else rows
    alive = words.any(1)
    square = float(words[alive].square().mean())
    if seen.signs:
        noise = square / 2
    else:
        noise = noise_variance(words) or seen.step**2 / 12
        if not seen.complete:
            unknown = (seen.upper - seen.lower)[alive] / 2
            unknown = unknown.where(unknown.isfinite(), square**0.5)
            noise += float(unknown.square().mean()) / 3
        noise = max(noise, LEAST_NOISE * square)
    return TableRows(words.float(), rows.float(), noise, tables.names, places)
