"""Places of words that stand once in a batch, told by the gradient of the first layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.summed_inputs import SummedInputs
from fedsim.types import Tensors

_NEAR = (0.02, 0.05)  # how far from 1 the share of a placed word may be, in turn
_ERROR = 0.1  # largest standard error of the shares of a placed word
_ABSENT = 0.35  # largest share, of either sign, at a place where a placed word does not stand


def narrowed(
    layers: FirstLayers, update: Tensors, tokens: Sequence[Tensor], stop: int
) -> list[Tensor]:
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
        stop: the token that ends each sentence, at several places.

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
    ids = torch.tensor(table.words)
    place = _placed(sums[:count], sums[count:-1], ids != stop)
    narrow = [tokens[0]]
    for number, part in enumerate(tokens[1:]):
        at = place[torch.searchsorted(ids, part.cpu())]
        some = part[((at < 0) | (at == number)).to(part.device)]
        narrow.append(some if len(some) else part)
    return narrow


def _placed(words: Tensor, places: Tensor, single: Tensor) -> Tensor:
    """The number of each word's place, -1 where it is open, from the rows of both.

    ``single`` words alone may stand once.
    """
    place = torch.full((len(words),), -1)
    rest = places.clone()
    for near in _NEAR:
        while len(others := torch.nonzero(place < 0)[:, 0]):
            some = words[others]
            shares = torch.linalg.lstsq(some.T, rest.T, driver="gelsd").solution
            first, best = shares.max(1)
            elsewhere = shares.scatter(1, best[:, None], 0).abs().amax(1)
            clear = ((first - 1).abs() < near) & (elsewhere < _ABSENT) & single[others]
            clear &= _errors(some, rest - shares.T @ some) < _ERROR
            if not clear.any():
                break
            place[others[clear]] = best[clear]
            rest.index_add_(0, best[clear], words[others[clear]], alpha=-1)
    return place


def _errors(words: Tensor, unexplained: Tensor) -> Tensor:
    """The largest standard error of each word's shares, if what is unexplained were noise."""
    free = max(1, words.shape[1] - len(words))
    noise = unexplained.norm(dim=1).max() / free**0.5
    errors: Tensor = torch.linalg.pinv(words).norm(dim=0) * noise
    return errors
