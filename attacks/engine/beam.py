"""A beam search over prefixes, which a scorer guides, and exchanges of single words."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from attacks.base import Job

P = TypeVar("P", bound="Prefixes")
W = TypeVar("W", bound="NextWords[Any]")
E_co = TypeVar("E_co", bound="tuple[Any, ...]", covariant=True)


class Sentence(NamedTuple):
    """What speaks for a sentence, in nats, and its tokens."""

    score: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Prefixes:
    """Beginnings of sentences, all of one length.

    A search derives from it, for what else its scorer knows of each: tensors ``(prefix, ...)``.

    Attributes:
        ids: int64 ``(prefix, token)``.
        score: what speaks for each ``(prefix,)``.
    """

    ids: Tensor
    score: Tensor

    @property
    def length(self) -> int:
        """Tokens of each."""
        return self.ids.shape[1]

    def take(self: P, rows: Tensor) -> P:
        """Some of them, in this order."""
        return replace(self, **{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def longer(self, rows: Tensor, words: Tensor) -> Tensor:
        """Ids of the prefixes ``rows`` with a further word each, ``(prefix, token + 1)``."""
        return torch.cat([self.ids[rows], words[:, None]], 1)


@dataclass(frozen=True)
class NextWords(Generic[E_co]):
    """What may follow each prefix.

    Attributes:
        ids: words tried, int64 ``(prefix, choice)``.
        score: what speaks for the prefix with the word, the same shape; minus infinity excludes it.
        ended: the prefixes that may end here, as sentences.
        tried: most prefixes that ``extend`` is asked for; 0 ends the search.
        kept: most of these that go on.
    """

    ids: Tensor
    score: Tensor
    ended: Sequence[E_co]
    tried: int
    kept: int


class Scorer(Protocol[P, W, E_co]):
    """Knows what speaks for words. Sentences are tuples, the better one is the greater."""

    def score(self, prefixes: P) -> W:
        """The next words of prefixes, and those that end."""
        ...

    def finish(self, prefixes: P) -> Sequence[E_co]:
        """Those that end, where no word may follow."""
        ...

    def extend(self, prefixes: P, words: W, rows: Tensor, columns: Tensor) -> P:
        """The prefixes ``rows`` with the words in ``columns``, scored with all care."""
        ...


@dataclass(frozen=True)
class Spread:
    """Leaves room for prefixes that differ in one word from the likeliest.

    The sentences of a batch differ in how strongly they show, and a weak one must not lose its
    place to variants of a strong one.

    Attributes:
        column: of the word, among the tokens of a prefix.
        words: an equal share of the beam for each of so many.
        shortest: prefixes in tokens that are spread.
        longest: the same.
        fill: whether what is left of the beam goes to further prefixes with the same word.
    """

    column: int
    words: int
    shortest: int = 0
    longest: float = torch.inf
    fill: bool = False


def grow(
    scorer: Scorer[P, W, E_co],
    prefixes: P,
    longest: int,
    job: Job,
    *,
    stale: float = torch.inf,
    spread: Spread | None = None,
) -> list[E_co]:
    """The sentences of a search, in the order of their length.

    Prefixes grow word by word, all at once. Of all next words those that the scorer speaks for most
    are tried with all care, and of these the best go on.

    Args:
        scorer: of prefixes.
        prefixes: to begin with.
        longest: tokens of a sentence.
        job: its time and its budget of work end the search, with the sentences so far.
        stale: further lengths without a better sentence that may pass.
        spread: of the prefixes that go on; None where the best do, however alike they are.
    """
    ended, best, waited = list[E_co](), None, 0
    while len(prefixes.ids):
        last = prefixes.length >= longest or job.expired
        words = None if last else scorer.score(prefixes)
        new = scorer.finish(prefixes) if words is None else words.ended
        ended += new
        top = max(new, default=None)
        if top is not None:
            waited = 0 if best is None or top > best else waited + 1
            best = top if best is None else max(best, top)
        if words is None or waited > stale or not words.tried:
            break
        choice, score = words.ids.shape[1], words.score.flatten()
        likely = _chosen(score, words.tried, prefixes, words.ids, spread)
        prefixes = scorer.extend(prefixes, words, likely // choice, likely % choice)
        if words.kept < words.tried:
            prefixes = prefixes.take(_chosen(prefixes.score, words.kept, prefixes, None, spread))
    return ended


def _chosen(
    score: Tensor, count: int, prefixes: Prefixes, words: Tensor | None, spread: Spread | None
) -> Tensor:
    """The best ``count`` of prefixes, or of each prefix with one of its next words."""
    length = prefixes.length + (words is not None)
    if spread is None or not spread.shortest <= length <= spread.longest:
        best, order = score.topk(min(count, len(score)))
        return order[best > -torch.inf]
    order = score.argsort(descending=True)
    order = order[score[order] > -torch.inf]
    column = spread.column % length
    if words is None:
        shown = prefixes.ids[order, column]
    elif column == length - 1:
        shown = words.flatten()[order]
    else:
        shown = prefixes.ids[order // words.shape[1], column]
    alike, room, crowded = Counter[int](), max(1, count // spread.words), []
    for word in shown.tolist():
        alike[word] += 1
        crowded.append(alike[word] > room)
    late = torch.tensor(crowded, dtype=torch.bool, device=order.device)
    order = order[late.argsort(stable=True)] if spread.fill else order[~late]
    return order[:count]


def improved(
    line: Tensor,
    score: float,
    scores: Callable[[Tensor], Tensor],
    rivals: Tensor,
    sweeps: int,
    job: Job,
) -> tuple[Tensor, float]:
    """The line after rounds of exchanging single words, place by place, and its score.

    Args:
        line: ``(token,)``.
        score: of it.
        scores: of lines ``(line, token)``.
        rivals: words to try at each place ``(token, rival)``, the likeliest first; -1 for none.
        sweeps: most rounds.
        job: ends them when its time is up.
    """
    for _ in range(sweeps):
        before = line
        for place, tokens in enumerate(rivals):
            tried = tokens[(tokens != line[place]) & (tokens >= 0)]
            if not len(tried) or job.expired:
                continue
            lines = line.repeat(len(tried), 1)
            lines[:, place] = tried
            values = scores(lines)
            if float(values.max()) > score:
                score, line = float(values.max()), lines[int(values.argmax())]
        if torch.equal(before, line):
            break
    return line, score
