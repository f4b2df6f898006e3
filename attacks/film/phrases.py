"""Local search over the order of phrases and words (Malkin et al. 2021; FILM, 2022)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedsim.models.layers import middle_norm, normalised

TokenIds: TypeAlias = tuple[int, ...]
Score: TypeAlias = Callable[[Sequence[TokenIds], float], Tensor]
"""Float ``(sentence,)``, lower is better; scores above the limit are lower bounds."""

_BREAKS = 40  # most break points of a sentence considered in one step
_WINDOW = (7, 14)  # shortest and longest stretch, in tokens, that every other step keeps to
_PIECES = (3, 4, 5)  # break points of one step; the pieces between them are rearranged
_SHORTLIST = 256  # rearrangements with the best links, from which the candidates are drawn


class Fluency:
    """FILM's score: perplexity plus ``beta`` times a gradient norm.

    The gradient is that of the scale of the middle block's last norm, as in the authors' code;
    their formula takes all parameters. Since its norm is not negative, it is computed only for
    sentences whose perplexity alone is below the limit.
    """

    def __init__(self, network: nn.Module, beta: float) -> None:
        self.network, self.beta = network.requires_grad_(False), beta
        self._norm: Any = middle_norm(network)

    def __call__(self, sentences: Sequence[TokenIds], limit: float = float("inf")) -> Tensor:
        """The score of each sentence, on the CPU."""
        device = self._norm.weight.device
        ids = [torch.tensor(sentence, device=device) for sentence in sentences]
        inputs = pad_sequence(ids, batch_first=True)
        targets = pad_sequence(ids, batch_first=True, padding_value=-100)[:, 1:]
        with torch.no_grad():
            scores = self._loss(inputs, targets).exp()
        near = torch.nonzero(scores < limit)[:, 0]
        if self.beta and len(near):
            scores[near] += self.beta * self._gradient_norm(inputs[near], targets[near])
        return scores.cpu()

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of each sentence's tokens."""
        logits = _logits(self.network, inputs)[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        mean: Tensor = losses.view_as(targets).sum(1) / (targets != -100).sum(1)
        return mean

    def _gradient_norm(self, inputs: Tensor, targets: Tensor) -> Tensor:
        seen: dict[str, Tensor] = {}

        def cut(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
            del module
            seen["normal"] = normalised(self._norm, arguments[0])
            seen["output"] = output.detach().requires_grad_()
            return seen["output"]

        handle = self._norm.register_forward_hook(cut)
        try:
            total = self._loss(inputs, targets).sum()
        finally:
            handle.remove()
        (gradient,) = torch.autograd.grad(total, seen["output"])
        norm: Tensor = (gradient * seen["normal"]).sum(1).norm(dim=1)
        return norm


def _logits(network: nn.Module, inputs: Tensor) -> Tensor:
    """Float ``(sentence, token, vocabulary)``; no token attends to the padding behind it."""
    mask = torch.ones_like(inputs)  # transformers warns if no mask is given
    logits: Tensor = network(input_ids=inputs, attention_mask=mask, use_cache=False).logits
    return logits


@dataclass(frozen=True, slots=True)
class Links:
    """Log-probabilities of the joints between pieces of a sentence.

    Attributes:
        cuts: token positions at which a piece may begin, ascending, ``(cut,)``.
        gains: log-probability of the token at cut ``j`` after the text before cut ``i``.
    """

    cuts: tuple[int, ...]
    gains: Tensor

    def rearranged(
        self, sentence: TokenIds, pieces: int, count: int, rng: torch.Generator
    ) -> list[TokenIds]:
        """At most ``count`` sentences with the pieces between ``pieces`` cuts in a new order.

        One order is drawn for all. Each choice of cuts is rated by the gain in log-probability at
        its joints, and ``count`` choices are drawn from the best ``_SHORTLIST``.
        """
        orders = list(itertools.permutations(range(pieces - 1)))[1:]
        order = orders[int(torch.randint(len(orders), (), generator=rng))]
        chosen = _subsets(len(self.cuts), pieces)
        path = [-1, *order, pieces - 1]  # the text before the first cut, the pieces, the rest
        gain = torch.zeros(len(chosen))
        for before, after in itertools.pairwise(path):
            gain += self.gains[chosen[:, before + 1], chosen[:, after]]
        for cut in range(pieces):
            gain -= self.gains[chosen[:, cut], chosen[:, cut]]
        best = gain.topk(min(_SHORTLIST, len(gain))).indices
        drawn = best[torch.randperm(len(best), generator=rng)[:count]]
        return [self._cut(sentence, row, order) for row in chosen[drawn].tolist()]

    def _cut(self, sentence: TokenIds, chosen: list[int], order: Sequence[int]) -> TokenIds:
        ends = [self.cuts[i] for i in chosen]
        parts = [sentence[ends[i] : ends[i + 1]] for i in order]
        return (*sentence[: ends[0]], *itertools.chain(*parts), *sentence[ends[-1] :])


@lru_cache(maxsize=64)
def _subsets(size: int, count: int) -> Tensor:
    return torch.tensor(list(itertools.combinations(range(size), count)))


@dataclass(frozen=True)
class Phrases:
    """Moves of whole phrases.

    Attributes:
        begins: whether a token may begin a piece, so that the tokens of a word stay together.
        fixed: number of tokens at the front that stay in place.
    """

    network: nn.Module
    begins: Callable[[int], bool]
    fixed: int

    def __call__(
        self, sentence: TokenIds, step: int, count: int, rng: torch.Generator
    ) -> list[TokenIds]:
        """At most ``count`` rearrangements; every other step is confined to a short stretch."""
        first = max(self.fixed, 1)
        cuts = [p for p in range(first, len(sentence)) if p == first or self.begins(sentence[p])]
        if step % 2:
            size = int(torch.randint(_WINDOW[0], _WINDOW[1] + 1, (), generator=rng))
            start = int(torch.randint(max(len(sentence) - size, 1), (), generator=rng))
            cuts = [p for p in cuts if start <= p <= start + size]
        if len(cuts) > _BREAKS:
            keep = torch.randperm(len(cuts), generator=rng)[:_BREAKS].sort().values
            cuts = [cuts[i] for i in keep.tolist()]
        pieces = _PIECES[int(torch.randint(len(_PIECES), (), generator=rng))]
        if len(cuts) < pieces:
            return []
        return self._links(sentence, cuts).rearranged(sentence, pieces, count, rng)

    @torch.no_grad()
    def _links(self, sentence: TokenIds, cuts: list[int]) -> Links:
        device = next(self.network.parameters()).device
        ids = torch.tensor(sentence, device=device)
        logits = _logits(self.network, ids[None])[0]
        places = torch.tensor(cuts, device=device)
        gains = logits[places - 1].log_softmax(1)[:, ids[places]]
        return Links(tuple(cuts), gains.float().cpu())


@dataclass(frozen=True)
class Words:
    """Moves of single tokens: a swap of two, a deletion, or an insertion from the bag.

    Attributes:
        bag: token ids to insert, ``(word,)``.
        fits: whether a sentence may have this many tokens.
        fixed: numbers of tokens at the front and at the back that stay in place.
    """

    bag: Tensor
    fits: Callable[[int], bool]
    fixed: tuple[int, int]

    def __call__(
        self, sentence: TokenIds, step: int, count: int, rng: torch.Generator
    ) -> list[TokenIds]:
        """At most ``count`` sentences, each a single move away."""
        del step
        front, back = self.fixed
        inner = list(sentence[front : len(sentence) - back])
        moves = [self._swap] if len(inner) > 1 else []
        moves += [self._delete] if len(inner) > 1 and self.fits(len(sentence) - 1) else []
        moves += [self._insert] if self.fits(len(sentence) + 1) else []
        neighbours: list[TokenIds] = []
        for choice in torch.randint(len(moves), (count,), generator=rng) if moves else ():
            new = moves[int(choice)](inner, rng)
            neighbours.append((*sentence[:front], *new, *sentence[len(sentence) - back :]))
        return neighbours

    def _swap(self, inner: list[int], rng: torch.Generator) -> list[int]:
        first, second = torch.randperm(len(inner), generator=rng)[:2].tolist()
        new = list(inner)
        new[first], new[second] = new[second], new[first]
        return new

    def _delete(self, inner: list[int], rng: torch.Generator) -> list[int]:
        place = int(torch.randint(len(inner), (), generator=rng))
        return inner[:place] + inner[place + 1 :]

    def _insert(self, inner: list[int], rng: torch.Generator) -> list[int]:
        place = int(torch.randint(len(inner) + 1, (), generator=rng))
        word = int(self.bag[torch.randint(len(self.bag), (), generator=rng)])
        return [*inner[:place], word, *inner[place:]]


Moves: TypeAlias = Callable[[TokenIds, int, int, torch.Generator], list[TokenIds]]


def improve(
    sentence: TokenIds,
    score: Score,
    moves: Moves,
    *,
    steps: int,
    patience: int,
    count: int,
    rng: torch.Generator,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[TokenIds, float]:
    """The best sentence after at most ``steps`` steps of ``count`` moves, and its score.

    A step accepts the best of its moves if it improves the score; more than ``patience`` steps
    without improvement end the search. No sentence is scored twice.
    """
    best, lowest, last = sentence, float(score([sentence], float("inf"))), 0
    seen = {sentence}
    for step in range(steps):
        if expired() or step - last > patience:
            break
        tried = [new for new in dict.fromkeys(moves(best, step, count, rng)) if new not in seen]
        if not tried:
            continue
        seen.update(tried)
        scores = score(tried, lowest)
        index = int(scores.argmin())
        if float(scores[index]) < lowest:
            best, lowest, last = tried[index], float(scores[index]), step
    return best, lowest
