"""The end of a text search: words replaced and moved until the gradients agree."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.texts.text_search import Search, reordered

SHORTLIST = 16
"""Tokens considered for a place, by each of the two orders."""
ROUND = 96
"""Texts tried in the neighbourhood of one."""
LIKELY = 0.5
"""Weight of a nat of the prior, in standard deviations of the slope over the vocabulary."""
FOUND = 1e-5
"""Share of the first distance below which the text is found."""


def substituted(
    search: Search,
    victim: int,
    lane: int,
    ids: Tensor,
    labels: Tensor,
    distance: float,
    *,
    tries: int,
    rng: torch.Generator,
) -> tuple[Tensor, float]:
    """The text of the lowest distance found by best-first search from a guess, and that distance.

    A continuous search ends with a wrong word here and there, and in an order that no single move
    mends. From the best text whose neighbours are not known, up to 96 of them are tried: a word
    replaced, words moved as in LAMP, or a word taken out and another put in elsewhere. Which words
    may come in is a short list for each place: those along which the distance falls to first order,
    as in HotFlip (Ebrahimi et al. 2018), and, if there is a prior, those that it expects as well.
    The distance alone decides: the prior only proposes.

    Args:
        search: of the victim.
        victim: its number.
        lane: whose frame holds.
        ids: the guess, ``(sentence, token)``.
        labels: in the representation of the search.
        distance: of the guess.
        tries: texts tried at most.
        rng: where neighbours are drawn from.
    """
    table = search.vocabulary.table
    best = distance, tuple(ids.flatten().tolist())
    known, open_texts = {best[1]}, [best]
    goal = FOUND * abs(distance)
    sentences = search.frames.free[victim, lane].any(-1).nonzero()[:, 0]
    while tries > 0 and len(sentences) and open_texts and best[0] > goal and not search.job.expired:
        text = torch.tensor(heapq.heappop(open_texts)[1], device=ids.device).view_as(ids)
        sentence = int(sentences[torch.randint(len(sentences), (), generator=rng)])
        near = _neighbourhood(search, victim, lane, text, labels, sentence)
        fresh: list[tuple[int, ...]] = []
        for words in near.drawn(rng):
            changed = text.clone()
            changed[sentence] = torch.tensor(words, device=ids.device)
            if (key := tuple(changed.flatten().tolist())) not in known:
                known.add(key)
                fresh.append(key)
        if not (fresh := fresh[:tries]):
            continue
        tries -= len(fresh)
        texts = torch.tensor(fresh, device=ids.device).view(-1, *ids.shape)
        tried = search.distances(victim, lane, table[texts], labels[None])
        for pair in zip(tried.nan_to_num(torch.inf).tolist(), fresh, strict=True):
            heapq.heappush(open_texts, pair)
        best = min(best, open_texts[0])
    return torch.tensor(best[1], device=ids.device).view_as(ids), best[0]


@dataclass(frozen=True)
class _Neighbourhood:
    """Sentences close to one.

    Attributes:
        words: of the sentence, special tokens included.
        places: first and last place that is searched for.
        lists: by each order of the vocabulary, the tokens for each place, best first.
    """

    words: list[int]
    places: tuple[int, int]
    lists: Sequence[list[list[int]]]

    def drawn(self, rng: torch.Generator) -> Iterator[list[int]]:
        """Some of them; a sentence may come twice."""
        first, last = self.places
        words = self.words
        for kind, move, origin, target, rank, order in torch.rand(ROUND, 6, generator=rng).tolist():
            middle = words[first : last + 1]
            place, goal = (int(draw * len(middle)) for draw in (origin, target))
            shortlist = self.lists[int(order * len(self.lists))]
            if kind < 0.5:
                middle[place] = _ranked(shortlist[place], rank)
            elif kind < 0.75:
                middle = reordered(middle, move, origin, target, rank)
            else:
                del middle[place]
                middle.insert(goal, _ranked(shortlist[goal], rank))
            yield [*words[:first], *middle, *words[last + 1 :]]


def _ranked(shortlist: list[int], draw: float) -> int:
    """One of the list, sooner one of its beginning."""
    return shortlist[int(len(shortlist) * draw**2)]


def _neighbourhood(
    search: Search, victim: int, lane: int, text: Tensor, labels: Tensor, sentence: int
) -> _Neighbourhood:
    vocabulary = search.vocabulary
    places = search.frames.free[victim, lane, sentence].nonzero()[:, 0]
    slope = search.slope(victim, lane, vocabulary.table[text], labels)[sentence, places]
    scores = vocabulary.table[vocabulary.allowed] @ slope.T
    scores = (scores - scores.mean(0)) / scores.std(0).clamp(min=torch.finfo(scores.dtype).tiny)
    orders = [scores]
    if search.prior is not None:
        before = (places - 1).clamp(min=0)
        following = search.prior.following(text[sentence][None])[0, before]
        likely = torch.where(places[:, None] > 0, following, 0)[:, vocabulary.allowed]
        orders.append(scores - LIKELY * likely.T.to(scores))
    size = min(SHORTLIST, len(vocabulary.allowed))
    lists = [
        vocabulary.allowed[order.topk(size, dim=0, largest=False).indices].T.tolist()
        for order in orders
    ]
    return _Neighbourhood(text[sentence].tolist(), (int(places[0]), int(places[-1])), lists)
