"""Starts of a text search: random embeddings, and random orders of the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.texts.frames import Lowest, ordered
from attacks.texts.text_search import Search


def start(search: Search, draws: int, rngs: Sequence[torch.Generator], *, rescale: bool) -> None:
    """The best of random embeddings, then of orders of its words; norms as the vocabulary's."""
    sentences, tokens, width = search.guess.shape[2:]
    for victim, rng in enumerate(rngs):
        # Nothing is drawn for padding, which depends on the victims that share the group.
        longest = int(search.frames.mask[victim].sum(-1).max())
        for lane in range(search.guess.shape[1]):
            own = Lowest()
            for count in _portions(search, draws):
                drawn = torch.randn(count, sentences, longest, width, generator=rng)
                drawn = pad(drawn, (0, 0, 0, tokens - longest)).to(search.guess)
                drawn = search.framed(drawn, victim, lane)
                own.offer(search.distances(victim, lane, drawn), drawn)
            for count in _portions(search, draws if draws > 1 else 0):
                orders = _shuffles(search.frames.free[victim, lane].cpu(), count, rng)
                drawn = ordered(own.candidate, orders.to(search.guess.device))
                own.offer(search.distances(victim, lane, drawn), drawn)
            search.guess[victim, lane] = own.candidate
        if rescale:
            norms = search.guess[victim].norm(dim=-1, keepdim=True).clamp(min=1e-12)
            search.guess[victim] *= search.vocabularies[victim].size / norms
    search.reset()


def _portions(search: Search, total: int) -> Iterator[int]:
    """``total`` in parts that fit into a pass; the first alone when the time is over."""
    for done in range(0, total, search.weights.lanes):
        if done and search.job.expired:
            return
        yield min(search.weights.lanes, total - done)


def _shuffles(free: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Random orders of the words of each sentence, ``(count, sentence, token)``.

    ``free (sentence, token)`` says where words are.
    """
    orders = torch.arange(free.shape[1]).repeat(count, len(free), 1)
    for sentence, own in enumerate(free):
        places = torch.nonzero(own)[:, 0]
        for row in orders[:, sentence]:
            row[places] = places[torch.randperm(len(places), generator=rng)]
    return orders
