"""Sentences grown by what adapters show of the words behind the attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, grow
from attacks.span.exact.word_gradients import WordGradients
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.pursuit import Pursuit
from attacks.tokens.subspace import Subspace
from fedsim.tasks.text import TextTask

_PURSUED_CONTEXTS = 3  # random prefixes of each length that a word's usual input is the mean of
_PURSUED_LENGTHS = (4, 8, 16, 24)  # of these, in tokens
_CONTEXT_RIDGE = 0.03  # mean variances that are added to those of contexts
_LEAST_SPREAD = 1e-3  # of shares, as rounding alone may have none
_PURSUED_APART = 10.0  # deviations of a share beyond which it says no more
_PURSUED_STALE = 6  # further tokens that may pass without a likelier sentence
_PURSUED_SWEEPS = 3  # most searches of each sentence of a batch
_PURSUED_PREFIXES = 16  # prefixes kept in the growth of a sentence
_AGREEING_PREFIXES = 8  # of these where gradients of words tell them apart
_AGREEING_TRIED = 3  # times as many are asked for the gradients of their words
_AGREEMENT = 2.0  # weight of these gradients

_FACTORS = (1.0, 0.5, 2.0, 4.0)
"""Shares that count of the log-likelihood ratio of normal shares, until a sentence explains all;
the first for several sentences."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a sentence.

    Attributes:
        residuals: what it leaves of each layer beside the usual inputs of all words.
        bare: what it leaves of each layer by itself.
        score: its log-probability.
        nats: how well it explains the gradients of its words, see ``WordGradients``.
        right: whether they show that it is a sentence of the batch.
    """

    ids: tuple[int, ...]
    residuals: tuple[Pursuit, ...]
    bare: tuple[Pursuit, ...]
    score: float = 0.0
    nats: float = 0.0
    right: bool = False

    @property
    def total(self) -> float:
        """What speaks for it in all."""
        return self.score + _AGREEMENT * self.nats

    @property
    def explains(self) -> bool:
        """Whether it leaves nothing."""
        return all(pursuit.done for pursuit in self.bare)


@dataclass(frozen=True)
class Growth:
    """Tells the next token of a prefix by the layers behind the attention.

    A true token's input is one of the rows whose combinations a layer shows, so that a larger share
    of it lies in their space. Rows of the same word at other places are alike, which hides this
    until the usual input of every word of the batch is taken off: what is left is the context.
    Contexts are alike as well, so that shares are taken in the metric of their covariance.

    Attributes:
        layers: the network's first two blocks.
        kinds: the layers behind the attention that show anything.
        metrics: of each, the root of the inverse covariance of contexts ``(width, width)``.
        begin: of every sentence, before its first token.
        places: the words of the batch at each place.
        writes: the language model; None for a classifier.
        end: the token that ends a sentence; None if none does.
        gradients: of the words; None where nothing behind the adapters can be computed.
        trust: share that counts of the log-likelihood ratio of normal shares.
    """

    layers: FirstLayers
    kinds: Sequence[Layer]
    metrics: Sequence[Tensor]
    begin: Prefix
    places: Sequence[Tensor]
    writes: Any
    end: int | None
    gradients: WordGradients | None = None
    trust: float = 1.0

    @classmethod
    def of(
        cls,
        layers: FirstLayers,
        spaces: Mapping[Layer, Subspace],
        places: Sequence[Tensor],
        task: TextTask,
        rng: torch.Generator,
        gradients: WordGradients | None = None,
    ) -> Growth:
        """Take the usual inputs behind random words of the batch, where these leave room."""
        edges = task.tokens([""])[0]
        modelled = task.spec.kind == "language-modelling"
        end = edges[-1] if edges and modelled else -1
        places = [places[0], *[words[words != end] for words in places[1:]]]
        kinds, bag = list(spaces), torch.cat(places).unique()
        inputs = []
        lengths = [n for n in _PURSUED_LENGTHS if layers.everywhere or n < task.max_length]
        for size in lengths:
            drawn = torch.randint(len(bag), (_PURSUED_CONTEXTS, size), generator=rng)
            contexts = bag[drawn.to(bag.device)]
            contexts[:, 0] = places[0][0]
            inputs.append(layers.of_extensions(kinds, contexts, bag))
        metrics, bare, usual = [], [], []
        for space, parts in zip(spaces.values(), zip(*inputs, strict=True), strict=True):
            seen = torch.cat(parts).double()
            mean = seen.mean(0)
            metric = _metric((seen - mean).flatten(0, 1))
            metrics.append(metric)
            bare.append(Pursuit.of(torch.linalg.qr(metric.T @ space.basis.double()).Q))
            roomy = len(bag) + 2 * space.rank <= space.width
            usual.append(bare[-1].plus(mean @ metric) if roomy else bare[-1])
        writes = layers.network if modelled else None
        begin = Prefix((), tuple(usual), tuple(bare))
        sure = end if end >= 0 else None
        return cls(layers, kinds, metrics, begin, places, writes, sure, gradients)

    def sentences(self, count: int, job: Job) -> list[tuple[int, ...]]:
        """As many sentences as the batch has, one by one, each without what others explain.

        The others of a batch are partly wrong at first, so that each is searched again beside them
        until nothing is left to explain.
        """
        batch = list[Prefix]()
        for index in range(_PURSUED_SWEEPS * count if count > 1 else 1):
            if len(batch) == count and batch[index % count].right:
                continue
            others = [each for i, each in enumerate(batch) if i != index % count]
            begin, growth = self._beside(others), self._without(others)
            factors = _FACTORS if count == 1 else _FACTORS[:1]
            for factor in factors:
                best = replace(growth, trust=factor)._best(begin, job)
                if best.explains or best.right:
                    break
            if job.expired and index >= count:
                break
            batch[index % count :] = [best, *batch[index % count + 1 :]]
            whole = len(batch) == count and (best.explains or all(each.right for each in batch))
            if job.expired or whole:
                break
        if not best.explains:
            return [sentence.ids for sentence in batch]
        return [self._trimmed(sentence, batch) for sentence in batch]

    def _without(self, others: Sequence[Prefix]) -> Growth:
        """The same without the gradients of words that others explain."""
        gradients = self.gradients
        if gradients is None:
            return self
        for other in sorted(others, key=lambda other: not other.right):
            gradients = gradients.without(self._ended(other.ids), right=other.right)
        return replace(self, gradients=gradients)

    def _ended(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids if self.end is None or len(ids) == len(self.places) else (*ids, self.end)

    def _trimmed(self, sentence: Prefix, batch: Sequence[Prefix]) -> tuple[int, ...]:
        """The shortest beginning of a sentence that explains all beside the others.

        Before a sure end, the last token has next to no gradient: the model tells it, if any.
        """
        shorter = self._beside([other for other in batch if other is not sentence])
        inputs = self._inputs(self.places[0].new_tensor([sentence.ids]))
        for place, word in enumerate(sentence.ids):
            last = [x[0, place : place + 1] for x in inputs]
            shorter = self._grown(shorter, word, last, sentence.score)
            if place and shorter.explains:
                break
        if self.end is None or len(shorter.ids) == len(self.places):
            return shorter.ids
        (logs,) = self._written([shorter.ids])
        words = self.places[len(shorter.ids)]
        longer = [(*shorter.ids, word) for word in words.tolist()]
        ends = torch.cat([logs[words] + self._written(longer)[:, self.end], logs[self.end][None]])
        return [*longer, shorter.ids][int(ends.argmax())]

    def _beside(self, others: Sequence[Prefix]) -> Prefix:
        """The beginning of a sentence beside others, with what these leave."""
        begin = self.begin
        for other in others:
            inputs = self._inputs(torch.tensor([other.ids], device=self.places[0].device))
            residuals, bare = (
                tuple(pursuit.plus(x[0]) for pursuit, x in zip(part, inputs, strict=True))
                for part in (begin.residuals, begin.bare)
            )
            begin = replace(begin, residuals=residuals, bare=bare)
        return begin

    def _inputs(self, ids: Tensor) -> list[Tensor]:
        """Inputs ``(sentence, token, width)`` of each layer in its metric."""
        inputs = self.layers.of_lines(self.kinds, ids)
        return [x.double() @ metric for x, metric in zip(inputs, self.metrics, strict=True)]

    def _best(self, begin: Prefix, job: Job) -> Prefix:
        """The likeliest sentence, or the first that explains all that is left."""
        firsts = self.places[0]
        inputs = self._inputs(firsts[:, None])
        beam = [
            self._grown(begin, word, [x[row] for x in inputs], 0.0)
            for row, word in enumerate(firsts.tolist())
        ]
        beams, longest = _Beam.of(beam, firsts), len(self.places)
        sentences = grow(self, beams, longest, job, stale=_PURSUED_STALE)
        return max(sentences).prefix

    def score(self, beam: _Beam) -> _Words:
        """The likeliest words; none behind a sentence that is sure."""
        tokens = self.places[beam.length]
        gains, over, inputs = self._gains(beam.each, tokens)
        ended = self._likeliest(beam, over)
        texts = beam.score.to(gains)[:, None] + gains
        most, likely = _PURSUED_PREFIXES, texts
        if self.gradients is not None:
            most = _AGREEING_TRIED * _AGREEING_PREFIXES
            nats = gains.new_tensor([prefix.nats for prefix in beam.each])[:, None]
            if beam.length > 1:  # behind the start, which all sentences have
                lines = [prefix.ids for prefix in beam.each]
                nats = nats + self.gradients.next_words(lines, tokens)
            likely = texts + _AGREEMENT * nats
        tried = 0 if ended[0].sure else most
        return _Words(tokens.expand_as(gains), likely, ended, tried, tried, texts, inputs)

    def extend(self, beam: _Beam, words: _Words, rows: Tensor, columns: Tensor) -> _Beam:
        """The likeliest prefixes with a further word; one alone that explains all."""
        texts = words.texts[rows, columns].tolist()
        width = _PURSUED_PREFIXES if self.gradients is None else _AGREEING_PREFIXES
        places = [*zip(rows.tolist(), columns.tolist(), strict=True)]
        longer = [
            replace(beam.each[row], ids=(*beam.each[row].ids, int(words.ids[row, at])), score=text)
            for (row, at), text in zip(places, texts, strict=True)
        ]
        pairs = zip(self._agreeing(longer), places, strict=True)
        new = []
        for prefix, (row, at) in sorted(pairs, key=lambda pair: -pair[0].total)[:width]:
            last = [x[row, at][None] for x in words.inputs]
            whole = self._grown(beam.each[row], prefix.ids[-1], last, prefix.score)
            new.append(replace(whole, nats=prefix.nats))
        return _Beam.of([prefix for prefix in new if prefix.explains][:1] or new, words.texts)

    def finish(self, beam: _Beam) -> list[_Ended]:
        """The likeliest prefix as a sentence."""
        return self._likeliest(beam, self._gains(beam.each, beam.ids[0, :0])[1])

    def _likeliest(self, beam: _Beam, over: Tensor) -> list[_Ended]:
        first = beam.each[0]
        if beam.length > 1 and first.explains:
            return [_Ended(True, first.total, first.ids, first)]
        ended = [
            replace(prefix, score=prefix.score + nats)
            for prefix, nats in zip(beam.each, over.tolist(), strict=True)
        ]
        likeliest = max(self._agreeing(ended, ended=True), key=lambda prefix: prefix.total)
        return [_Ended(likeliest.right, likeliest.total, likeliest.ids, likeliest)]

    def _gains(self, beam: Sequence[Prefix], tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """What speaks for each next token ``(prefix, token)`` and for the end ``(prefix,)``.

        With the inputs of the tokens at each layer ``(prefix, token, width)``. Where gradients
        tell, they are log-probabilities: shares alone would have a sentence run on.
        """
        logs = self._written([prefix.ids for prefix in beam])
        over = torch.zeros(len(beam)) if self.end is None else logs[:, self.end]
        if not len(tokens):
            return logs[:, :0], over, []
        ratios, inputs = self._ratios(beam, tokens)
        gains = ratios + logs[:, tokens]
        if self.gradients is not None and self.end is not None:
            both = torch.cat([gains, over[:, None]], 1).log_softmax(1)
            gains, over = both[:, :-1], both[:, -1]
        return gains, over, inputs

    def _agreeing(self, beam: Sequence[Prefix], *, ended: bool = False) -> list[Prefix]:
        """The same with how well each explains the gradients of its words."""
        if self.gradients is None:
            return [*beam]
        lines = [self._ended(prefix.ids) if ended else prefix.ids for prefix in beam]
        nats, right = self.gradients.agreement(lines)
        return [
            replace(prefix, nats=value, right=ended and whole)
            for prefix, value, whole in zip(beam, nats.tolist(), right.tolist(), strict=True)
        ]

    def _grown(self, prefix: Prefix, word: int, last: Sequence[Tensor], score: float) -> Prefix:
        """The prefix with a further token, whose inputs are ``(1, width)`` at each layer."""
        residuals, bare = (
            tuple(pursuit.plus(x) for pursuit, x in zip(part, last, strict=True))
            for part in (prefix.residuals, prefix.bare)
        )
        return Prefix((*prefix.ids, word), residuals, bare, score)

    @torch.no_grad()
    def _written(self, prefixes: list[tuple[int, ...]]) -> Tensor:
        """Log-probability of each next token, ``(prefix, vocabulary)``; 0 for a classifier."""
        ids = torch.tensor(prefixes, device=self.places[0].device)
        if self.writes is None:
            network: Any = self.layers.network
            size = network.get_input_embeddings().num_embeddings
            return torch.zeros(len(ids), size, device=ids.device)
        logs: Tensor = self.writes(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logs[:, -1].log_softmax(-1)

    def _ratios(self, beam: Sequence[Prefix], tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What speaks for each next token behind each prefix ``(prefix, token)``, in nats.

        And their inputs to each layer ``(prefix, token, width)``.
        """
        ids = torch.tensor([prefix.ids for prefix in beam], device=tokens.device)
        total = torch.zeros(len(beam), len(tokens), device=tokens.device)
        inputs = [
            x.double() @ metric
            for x, metric in zip(
                self.layers.of_extensions(self.kinds, ids, tokens), self.metrics, strict=True
            )
        ]
        for index, candidates in enumerate(inputs):
            for row, prefix in enumerate(beam):
                residual = prefix.residuals[index]
                # Without gradients to hold them, bare shares lose .07 of the words (FedSA-LoRA).
                full = len(residual.rows) + 2 * len(residual.residual) > residual.rows.shape[1]
                if full and self.gradients is not None:
                    residual = prefix.bare[index]
                share = residual.shares(candidates[row], residual.directions)
                apart = share - share.median()
                apart = apart / (1.4826 * apart.abs().median()).clamp(min=_LEAST_SPREAD)
                total[row] += self.trust * (apart.clamp(0, _PURSUED_APART).square() / 2 - 0.5).to(
                    total
                )
        return total, inputs


class _Ended(NamedTuple):
    """A sentence; ``sure`` if it explains all that is left, or the gradients of its words."""

    sure: bool
    total: float
    ids: tuple[int, ...]
    prefix: Prefix


@dataclass(frozen=True)
class _Beam(Prefixes):
    """Prefixes with what each leaves."""

    each: Sequence[Prefix]

    @classmethod
    def of(cls, each: Sequence[Prefix], like: Tensor) -> _Beam:
        """On the device of a tensor."""
        ids = torch.tensor([prefix.ids for prefix in each], device=like.device)
        score = torch.tensor([prefix.score for prefix in each], dtype=torch.float64)
        return cls(ids, score.to(like.device), each)


@dataclass(frozen=True)
class _Words(NextWords[_Ended]):
    """Next words.

    Attributes:
        texts: log-probability of the prefix with each, without what gradients say.
        inputs: of each word at each layer, ``(prefix, choice, width)``.
    """

    texts: Tensor
    inputs: Sequence[Tensor]


def _metric(contexts: Tensor) -> Tensor:
    """The root of the inverse covariance ``(width, width)`` of rows, with a ridge."""
    values, basis = torch.linalg.eigh(contexts.T @ contexts)
    metric: Tensor = basis * (values + _CONTEXT_RIDGE * values.mean()).rsqrt()
    return metric
