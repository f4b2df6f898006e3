"""Places of words that stand once in a batch, told by the gradient of the first layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.summed_inputs import SummedInputs
from fedsim.types import Tensors

_NEAR = (0.02, 0.05)  # how far from 1 the share of a placed word may be, in turn
_ABSENT = 0.35  # largest share, of either sign, at a place where a placed word does not stand


def narrowed(layers: FirstLayers, update: Tensors, tokens: Sequence[Tensor]) -> list[Tensor]:
    """The candidates at each position, without words that stand once at another.

    The input of a token is a normalised sum of a word's and a position's embeddings, so that its
    term of the gradient, ``(dL/dy_t) x_t^T``, is added to the word's and to the position's alike.
    Both sums follow by least squares. That of a position is the sum of those of its words, as far
    as these stand once in the batch, and so a regression on all words' tells their places, the
    clearest first. What stands several times is left open.

    Args:
        layers: of an encoder.
        update: weight gradients by name.
        tokens: the candidates at each position, the start at the first.

    Returns:
        All candidates where the inputs are no such sums, or gradients are missing.
    """
    table = SummedInputs.of(layers, tokens)
    names = [f"{name}.weight" for name in layers.tokens.modules]
    if table is None or not all(name in update for name in names):
        return [*tokens]
    atoms = table.atoms.double().cpu()
    gradient = torch.cat([update[name] for name in names]).to(atoms)
    sums = torch.linalg.lstsq(atoms.T, gradient.T, driver="gelsd").solution
    count = len(table.words)
    place = _placed(sums[:count], sums[count:-1])
    ids = torch.tensor(table.words)
    narrow = [tokens[0]]
    for number, part in enumerate(tokens[1:]):
        at = place[torch.searchsorted(ids, part.cpu())]
        narrow.append(part[((at < 0) | (at == number)).to(part.device)])
    return narrow


def _placed(words: Tensor, places: Tensor) -> Tensor:
    """The number of each word's place, -1 where it is open, from the rows of both."""
    place = torch.full((len(words),), -1)
    rest = places.clone()
    for near in _NEAR:
        while len(others := torch.nonzero(place < 0)[:, 0]):
            shares = torch.linalg.lstsq(words[others].T, rest.T, driver="gelsd").solution
            first, best = shares.max(1)
            elsewhere = shares.scatter(1, best[:, None], 0).abs().amax(1)
            clear = ((first - 1).abs() < near) & (elsewhere < _ABSENT)
            if not clear.any():
                break
            place[others[clear]] = best[clear]
            rest.index_add_(0, best[clear], words[others[clear]], alpha=-1)
    return place
