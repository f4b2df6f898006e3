"""Sentences of a language model grown by the update of all its weights, or all its adapters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, Spread, grow
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.causal.tree import Tree, sampled
from attacks.span.causal.whitening import Whitening
from attacks.tokens.next_token_shift import DirectionalShift, head_weight, next_word_weights
from fedsim.models.embeddings import embedding_names
from fedsim.types import Tensors

_ADAPTERS_SHIFT = 0.8  # the weight of that change where adapters alone were trained
_WEIGHTS_SHIFT = 2.0  # the same where all weights were trained
_WEIGHTS_TRUST = 0.2  # share of the log-likelihood ratio of white noise that counts there
_MATCHED_ROOM = 320  # tokens of the prefixes compared with an update at a time; half are kept
_MATCHED_TOKENS = 12  # tokens tried behind each of them
_SPREAD_TOKENS = 10  # length of prefixes up to which they are spread over their first words
_SPREAD_WORDS = 16  # the least number of these, of several sentences and all weights
_MATCHED_STALE = 6  # further tokens that may pass without a likelier sentence
_MATCHED_TRUST = 1.0  # share of the log-likelihood ratio of white noise that counts
_BARRED_WORDS = 64  # first words tried in vain until the rest of a batch is given up
_WHITENING_RIDGE = 0.3  # mean squares of the singular values that are added to each square
_NEXT_WORD_RIDGE = 0.03  # the same where a weight tells the next word


class Grown(NamedTuple):
    """A sentence, ordered by what the update says for it.

    Attributes:
        pays: whether the update says more for it than its text costs.
        nats: by how much; all that the update says for it where it does not pay.
    """

    pays: bool
    nats: float
    ids: tuple[int, ...]


class _Sentence(NamedTuple):
    ids: tuple[int, ...]
    gradient: Tensors


@dataclass(frozen=True)
class MatchedGrowth:
    """A beam search whose every prefix is compared with the whole update.

    The gradient of a causal model's prefix is the part of the sentence's gradient that its tokens
    make, so a prefix is scored by how much of the update its own gradient explains. The few outputs
    of adapters say little of a word in a single layer, but much in all of them together, and so do
    full weights after steps of Adam, which no longer span the inputs of a layer. The update is
    whitened first (``Whitening``). The likeness is counted from the mean of sentences drawn from
    the model, in their standard deviations: half its square is the log-likelihood ratio of Gaussian
    noise, and adds to the log-probability of the text. After each sentence its contribution is
    projected out of the update and the search repeats on the residual; finally sentences may swap
    their ends.

    Attributes:
        count: sentences of the batch.
        tree: edges and greatest length of a sentence, which has a token before its first word.
        match: compares with the whitened update.
        whitening: of it.
        bonus: nats that the first layer speaks for each word, ``(position, vocabulary)``.
        strangers: sentences drawn from the model ``(line, token)``.
        next_words: names of the tensors that tell next words.
        head: name of the head, if its update tells them too.
        shift: weight of what they tell.
        trust: share of the log-likelihood ratio that counts.
        words: first words that short prefixes are spread over.
    """

    count: int
    tree: Tree
    match: GradientMatcher
    whitening: Whitening
    bonus: Tensor
    strangers: Tensor
    next_words: Collection[str]
    head: str | None
    shift: float
    trust: float
    words: int

    @classmethod
    def of(
        cls,
        count: int,
        tree: Tree,
        match: GradientMatcher,
        bonus: Tensor,
        rng: torch.Generator,
        *,
        adapters: bool,
    ) -> MatchedGrowth:
        """Draw the sentences of the model that give the unit.

        All ``adapters`` are asked for next words. Of full weights, those from the hidden units of
        feed-forward layers are, as their inputs are the widest and overlap least, and the head.
        """
        network = match.model.network
        shift, trust, words = _ADAPTERS_SHIFT, _MATCHED_TRUST, 1
        update, head = match.update, None
        next_words: Collection[str] = update
        if not adapters:
            shift, trust = _WEIGHTS_SHIFT, _WEIGHTS_TRUST
            words = _SPREAD_WORDS if count > 1 else 1
            tables, head = embedding_names(network), head_weight(network)
            left_out = {tables.word, tables.position} - {head}
            update = {n: v for n, v in update.items() if v.dim() == 2 and n not in left_out}
            next_words = next_word_weights(network) & update.keys() or update.keys() - {head}
        whitening = Whitening.of(update, _WHITENING_RIDGE)
        if not adapters:
            telling = {name: update[name] for name in update if name in next_words or name == head}
            whitening |= Whitening.of(telling, _NEXT_WORD_RIDGE)
        match = match.each_of(whitening(update))
        strangers = sampled(network, tree.start, rng)
        return cls(
            count, tree, match, whitening, bonus, strangers, next_words, head, shift, trust, words
        )

    def sentences(self) -> list[list[int]]:
        """The sentences of the batch, fewer where the update shows no more or the time is up."""
        match, sentences, barred = self.match, list[_Sentence](), self._tensor([])
        while len(sentences) < self.count and len(barred) < _BARRED_WORDS:
            line, begun = self._best(match, self._unused(sentences), barred)
            if self.tree.job.expired and sentences:
                break
            if not line.pays and self.count > 1 and not self.tree.job.expired:
                barred = torch.cat([barred, begun])
                continue
            sentences.append(self._sentence(match, line.ids))
            barred = barred[:0]
            match = self._without(sentences)
        return [[*sentence.ids] for sentence in self._uncrossed(sentences)]

    def _uncrossed(self, sentences: list[_Sentence]) -> list[_Sentence]:
        if len(sentences) < 2:
            return sentences
        lines = [self._tensor(sentence.ids) for sentence in sentences]
        lines = swap_suffixes(lines, self._shift(self.match), self.tree.longest, self.tree.job)
        return [self._sentence(self.match, tuple(line.tolist())) for line in lines]

    def _without(self, sentences: Sequence[_Sentence]) -> GradientMatcher:
        residual = self.whitening.without(
            self.match.update, [sentence.gradient for sentence in sentences]
        )
        return self.match.each_of(residual)

    def _sentence(self, match: GradientMatcher, ids: tuple[int, ...]) -> _Sentence:
        return _Sentence(ids, match.gradient(self._tensor(ids)))

    def _unused(self, sentences: Sequence[_Sentence]) -> Tensor:
        """The bonus of each word where no sentence holds it yet."""
        bonus = self.bonus.clone()
        for sentence in sentences:
            places, ids = torch.arange(len(sentence.ids)), self._tensor(sentence.ids)
            bonus[places, ids] = bonus[places, ids].clamp(max=0)
        return bonus

    def _best(self, match: GradientMatcher, bonus: Tensor, barred: Tensor) -> tuple[Grown, Tensor]:
        """The likeliest sentence that begins with no barred word, and the words that were tried."""
        begin, longest = len(self.tree.start), self.tree.longest - (self.tree.end is not None)
        likeness = match.similarity(self.strangers, self.strangers)
        null = float(likeness.mean()), max(float(likeness.std()), 1e-30)
        scorer = _Likeness(self, match, self._shift(match), null, bonus, barred)
        start, none = self._tensor(self.tree.start)[None], bonus.new_zeros(1)
        spread = Spread(begin, self.words, begin + 2, begin + _SPREAD_TOKENS, fill=True)
        prefixes, job = _Matched(start, none, none, none), self.tree.job
        grown = grow(scorer, prefixes, longest, job, stale=_MATCHED_STALE, spread=spread)
        empty = (*self.tree.start, self.tree.start[-1] if self.tree.end is None else self.tree.end)
        return max(grown, default=Grown(False, -torch.inf, empty)), scorer.begun

    def _shift(self, match: GradientMatcher) -> DirectionalShift:
        moves = {name: match.update[name] for name in self.next_words}
        head = match.update.get(self.head or "")
        return DirectionalShift(match.model.network, moves, self.shift, 1.0, head)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.bonus.device)


@dataclass(frozen=True)
class _Matched(Prefixes):
    """Prefixes with their log-probability and what the update says for each, ``(prefix,)``."""

    text: Tensor
    ratio: Tensor


@dataclass(frozen=True)
class _Likely(NextWords[Grown]):
    """Next words with the log-probability of the text up to them, ``(prefix, choice)``."""

    text: Tensor


@dataclass
class _Likeness:
    """Scores prefixes of one sentence by the likeness of their gradients to an update.

    Attributes:
        growth: of the batch.
        match: compares with what other sentences leave of the update.
        shift: what that says of next words.
        null: mean and standard deviation of the strangers' likeness to it.
        bonus: as that of the growth, without words that are used up.
        barred: first words that are not tried again.
        begun: first words of the longest prefixes so far.
    """

    growth: MatchedGrowth
    match: GradientMatcher
    shift: DirectionalShift
    null: tuple[float, float]
    bonus: Tensor
    barred: Tensor
    begun: Tensor = field(default_factory=lambda: torch.tensor([]))

    def score(self, prefixes: _Matched) -> _Likely:
        """The likeliest words, and what the update says for the prefixes as sentences."""
        ended, place, single = self.finish(prefixes), prefixes.length, len(prefixes.ids) == 1
        logs = (self.shift.next_tokens(prefixes.ids) + self.bonus[place]).log_softmax(-1)
        if self.growth.tree.end is not None:
            logs[:, self.growth.tree.end] = -torch.inf
        if single:
            logs[:, self.barred] = -torch.inf
        room = _MATCHED_ROOM // (place + 1)
        few = room if single else _MATCHED_TOKENS
        tokens = logs.topk(min(few, logs.shape[1]), dim=1).indices
        text = prefixes.text[:, None] + logs.gather(1, tokens)
        score = text + prefixes.ratio[:, None]
        return _Likely(tokens, score, ended, room, (room + 1) // 2, text)

    def extend(self, prefixes: _Matched, words: _Likely, rows: Tensor, columns: Tensor) -> _Matched:
        """The prefixes ``rows`` with the words in ``columns``, compared with the update."""
        ids, text = prefixes.longer(rows, words.ids[rows, columns]), words.text[rows, columns]
        ratio = self._ratio(ids)
        return _Matched(ids, text + ratio, text, ratio)

    def finish(self, prefixes: _Matched) -> list[Grown]:
        """The likeliest sentence, or of those that do not pay the one of which most is said."""
        begin, end = len(self.growth.tree.start), self.growth.tree.end
        if prefixes.length == begin:
            return []
        self.begun, ended, ratio = prefixes.ids[:, begin].unique(), prefixes.ids, prefixes.ratio
        if end is not None:
            ended = torch.cat([ended, ended.new_full((len(ended), 1), end)], 1)
            ratio = self._ratio(ended)
        top = int((prefixes.text + ratio).argmax())
        pays = float(prefixes.text[top] + ratio[top] / self.growth.trust) > 0
        nats = float((prefixes.text + ratio)[top] if pays else ratio.max())
        return [Grown(pays, nats, tuple(ended[top if pays else int(ratio.argmax())].tolist()))]

    def _ratio(self, lines: Tensor) -> Tensor:
        """What the update says for each line ``(line,)``, in nats."""
        likeness = (self.match.similarity(lines, lines) - self.null[0]) / self.null[1]
        return self.growth.trust * likeness * likeness.abs() / 2


_JUNCTIONS = 24  # places tried where two sentences may have taken each other's ends
_LEAST_GAIN = 0.5  # nats by which an exchange of ends has to be likelier
_AT_ONCE = 16  # lines scored together, which bounds memory and changes no score


def swap_suffixes(
    lines: Sequence[Tensor], shift: DirectionalShift, longest: int, job: Job
) -> list[Tensor]:
    """The lines after exchanging the ends of two as long as that makes both likelier together.

    A search that is led by how much of an update a line explains may leave one sentence for the end
    of another. Both together then still hold the right words, and only what the model and the
    update say of the next word tells.

    Args:
        lines: token ids ``(token,)`` of each sentence.
        shift: the attacked model and what the update makes of it.
        longest: most tokens of a sentence.
        job: ends it when its time is up.
    """
    lines = [*lines]
    logs = [*_logs(lines, shift)]
    pairs = [*combinations(range(len(lines)), 2)]
    while pairs and not job.expired:
        pair = pairs.pop()
        line, other = (lines[index] for index in pair)
        best, swapped = sum(_total(logs[i], lines[i]) for i in pair) + _LEAST_GAIN, None
        places = _junctions(line, other, *(logs[index] for index in pair))
        swaps = [
            (torch.cat([line[:begin], other[start:]]), torch.cat([other[:start], line[begin:]]))
            for begin, start in places
            if max(begin + len(other) - start, start + len(line) - begin) <= longest
        ]
        scored = _logs([new for swap in swaps for new in swap], shift)
        for swap in swaps:
            new_logs = [next(scored) for _ in swap]
            if (total := sum(map(_total, new_logs, swap))) > best:
                best, swapped = total, (swap, new_logs)
        if swapped is not None:
            for index, new, log in zip(pair, *swapped, strict=True):
                lines[index], logs[index] = new, log
            again = [two for two in combinations(range(len(lines)), 2) if {*two} & {*pair}]
            pairs = [two for two in pairs if two not in again] + again
    return lines


def _logs(lines: Sequence[Tensor], shift: DirectionalShift) -> Iterator[Tensor]:
    """Log-probabilities of the next token at each place of each line."""
    for start in range(0, len(lines), _AT_ONCE):
        yield from (log.log_softmax(-1) for log in shift.along(lines[start : start + _AT_ONCE]))


def _junctions(line: Tensor, other: Tensor, logs: Tensor, theirs: Tensor) -> list[tuple[int, int]]:
    """Places ``(in one, in other)`` where the ends fit better by their first words, best first."""
    mine = logs.gather(1, line[1:, None]).squeeze(1)
    their = theirs.gather(1, other[1:, None]).squeeze(1)
    gain = logs[:, other[1:]] + theirs[:, line[1:]].T - mine[:, None] - their
    best = gain.flatten().topk(min(_JUNCTIONS, int((gain > 0).sum()))).indices
    return [(int(i) // gain.shape[1] + 1, int(i) % gain.shape[1] + 1) for i in best]


def _total(logs: Tensor, line: Tensor) -> float:
    return float(logs.gather(1, line[1:, None]).sum())
