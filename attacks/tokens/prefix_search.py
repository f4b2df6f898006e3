"""Sentences of a causal model, grown token by token by the likelihood of their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.engine.beam import NextWords, Prefixes, Sentence
from attacks.tokens.evidence import Evidence, total_ratio
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.next_token_shift import DirectionalShift

_NEAR_TOKENS = 8  # of these, those tried in the second block
_FIRST_WORDS = 4  # factor on both behind a single prefix, the start of every sentence
_BEGIN_TOKENS = 4  # first tokens that tell sentences of a batch from one another
_HOPELESS = 60.0  # log-probability below a sentence of the same begin that ends a prefix
_LINES = 32  # candidates kept of each first word, divided by the sentences of the batch
END_GAIN = 1.0
"""Log-likelihood ratio of the end of a sentence, beside what the model says."""
NEXT_TOKENS = 48
"""Tokens tried behind each prefix."""
PREFIXES = 8
"""Prefixes kept for each sentence of the batch."""
FEWEST_LINES = 8
"""The least of that."""


@dataclass(frozen=True)
class PrefixLikelihood:
    """Scores prefixes by the likelihood of their inputs.

    The input of every layer to a token of a causal model depends on its prefix alone, so that a
    prefix is scored by the layers of the first two blocks without knowing the rest. The ratios
    of its next tokens are normalised, so that a sentence that changes over to another one of the
    batch pays for the change, and gains nothing by its length.

    Attributes:
        layers: the network's first two blocks.
        near: evidence of the layers behind the first attention.
        later: evidence of those of the second block.
        first: log-likelihood ratio before any attention, ``(position, vocabulary)``.
        shift: the language model; None if the network has no head over the vocabulary.
        end: id of the token that ends a sentence; None if none does.
        beam: number of prefixes kept.
        count: sentences of the batch.
        best: log-probability of the best sentences so far, by their first tokens.
    """

    layers: FirstLayers
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    first: Tensor
    shift: DirectionalShift | None
    end: int | None
    beam: int
    count: int
    best: dict[tuple[int, ...], float] = field(default_factory=dict, init=False)

    def score(self, prefixes: Prefixes) -> NextWords[Sentence]:
        """The likeliest words, with those of the prefixes that may yet become sentences."""
        gain, tokens, over = self._extensions(prefixes.ids, prefixes.length)
        shares = torch.cat([gain, over[:, None]], 1).log_softmax(1)
        ended = self._sentences(prefixes.ids, prefixes.score + shares[:, -1])
        total = prefixes.score[:, None] + shares[:, :-1]
        alive = self._hopeful(prefixes.score, ended)
        total[~alive] = -torch.inf
        beam = max(self.beam, _FIRST_WORDS * _NEAR_TOKENS if int(alive.sum()) == 1 else 0)
        return NextWords(tokens, total, ended, beam, beam)

    def finish(self, prefixes: Prefixes) -> list[Sentence]:
        """All prefixes, as long as sentences are."""
        return self._sentences(prefixes.ids, prefixes.score)

    def extend(
        self, prefixes: Prefixes, words: NextWords[Sentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        """The prefixes ``rows`` with the words in ``columns``."""
        ids = prefixes.longer(rows, words.ids[rows, columns])
        return Prefixes(ids, words.score[rows, columns])

    @staticmethod
    def _sentences(ids: Tensor, logs: Tensor) -> list[Sentence]:
        pairs = zip(logs.tolist(), ids.tolist(), strict=True)
        return [Sentence(log, tuple(line)) for log, line in pairs]

    def _hopeful(self, score: Tensor, ended: Sequence[Sentence]) -> Tensor:
        """Which prefixes may yet become sentences, since none becomes likelier as it grows.

        Compared with the best sentences so far, by their first tokens.
        """
        best, begins = self.best, [sentence.ids[:_BEGIN_TOKENS] for sentence in ended]
        for begin, sentence in zip(begins, ended, strict=True):
            best[begin] = max(sentence.score, best.get(begin, -torch.inf))
        rank = 1 if self.count == 1 else 2 * self.count
        least = sorted(best.values(), reverse=True)[rank - 1] if len(best) >= rank else -torch.inf
        rivals = score.new_tensor([max(least, best[begin]) for begin in begins])
        hopeful: Tensor = score >= rivals - _HOPELESS
        return hopeful

    def _next_words(self, prefixes: Tensor) -> Tensor:
        if self.shift is None:
            return self.first.new_zeros(len(prefixes), self.first.shape[1])
        return self.shift.next_tokens(prefixes)

    def _extensions(self, prefixes: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-likelihood ratio and ids ``(prefix, token)`` of the best next tokens of each prefix.

        And what speaks for its end, ``(prefix,)``, in the same unit.
        """
        logs = self._next_words(prefixes)
        wider = _FIRST_WORDS if len(prefixes) == 1 else 1
        over = logs.new_zeros(len(logs))
        if self.end is not None:
            over = logs[:, self.end].clone()
            logs[:, self.end] = -torch.inf
            if position == len(prefixes) == 1:  # a sentence has a word
                over.fill_(-torch.inf)
        size = min(wider * NEXT_TOKENS, self.first.shape[1])
        gain, tokens = (self.first[position] + logs).topk(size, dim=1)
        for evidence, few in ((self.near, _NEAR_TOKENS), (self.later, _NEAR_TOKENS)):
            if evidence:
                inputs = self.layers.of_extensions([e.layer for e in evidence], prefixes, tokens)
                gain = gain + total_ratio(evidence, inputs)
            gain, index = gain.topk(min(wider * few, gain.shape[1]), dim=1)
            tokens = tokens.gather(1, index)
        return gain, tokens, over + END_GAIN


def varied(sentences: Sequence[Sentence], start: int, count: int) -> list[Sentence]:
    """The likeliest sentences of each first word, of different lengths, for some first words."""
    by_word: dict[int, dict[int, Sentence]] = {}
    for sentence in sorted(sentences, key=lambda sentence: -sentence.score):
        if len(sentence.ids) > start + 1:
            by_length = by_word.setdefault(sentence.ids[start], {})
            if len(by_length) < max(FEWEST_LINES, _LINES // count):
                by_length.setdefault(len(sentence.ids), sentence)
    lines = [
        sentence
        for by_length in list(by_word.values())[: 2 * count]
        for sentence in by_length.values()
    ]
    return lines or list(sentences[:1])
