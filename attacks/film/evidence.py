"""Evidence of the first block's gradients for each next word of a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Job, Reconstruction
from attacks.film.beam import Grammar, search
from attacks.proofs.certificate import Prover, proven
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.exact_traces import read_traces
from attacks.tokens.sentences import SpanSentence
from attacks.tokens.span_membership import SpanTest, best_test
from fedsim.errors import CannotAttack

Line = tuple[int, ...]
_DECADE_NATS = 2.0
"""Nats for a sine ten times smaller."""
_FEWEST_DECADES = -1.0
"""Lower bound of the decades that count, reached at a sine of 1."""
_MOST_DECADES = 3.0
"""Upper bound of the decades that count, reached at a sine of 0.0001."""
_OUTSIDE = 100.0
"""Nats that a word outside the span costs; more than a likelier word gains."""
_TRIED = 2
"""Nearest words tried where none is in the span, and doubtful sentences tried for each accepted
one."""
_IN_SPAN_SHARE = 0.8
"""Least share of an accepted sentence's tokens that lie in the span."""
_STRICTER = 10
"""Divisor of the largest accepted sine for the part of a sentence that no accepted sentence
shares."""
_UNCLEAR_SINE = 0.005
"""Largest accepted sine where no gap separates the tokens."""
_FIRST_SEARCH = 1
"""Factor on the largest accepted sine in the first search."""
_SECOND_SEARCH = 3
"""Factor on the largest accepted sine in the second search."""


@dataclass(frozen=True)
class SpanEvidence:
    """Compares next words with the span of a layer behind the first attention.

    In a causal model the input of that layer depends on the token and all earlier ones, so that a
    word lies in the span only as the continuation of its own sentence. Its evidence is
    ``2 clip(-log10 sine - 1, -1, 3)`` nats. If some word after a prefix lies in the span, all
    others are excluded. If none does, either the sentence is over or the gradient of its next word
    is too small to show. The nearest words, called strays, are then tried; two strays in a row, or
    more than one word in five, end the prefix.

    Attributes:
        test: measures tokens after prefixes.
        tokens: candidates by position.
        limit: largest sine of a token in the span.
        first: names of the first block's weights that were sent.
        strays: prefixes tried whose last word is not in the span.
    """

    test: SpanTest
    tokens: Sequence[Tensor]
    limit: float
    first: Sequence[str]
    strays: set[Line] = field(default_factory=set)

    @property
    def words(self) -> Tensor:
        """All candidates, ascending ``(word,)``."""
        words: Tensor = torch.cat(list(self.tokens)).unique()
        return words

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence, including its end token, which leaves no trace."""
        return len(self.tokens) + 1

    def of(self, sentences: Tensor, words: Tensor) -> Tensor:
        """Nats for each word as the next token of each sentence ``(beam, word)``.

        Args:
            sentences: prefixes of equal length, ``(beam, token)``.
            words: token ids, ascending.
        """
        nats = torch.full((len(sentences), len(words)), -math.inf, device=words.device)
        lines = [tuple(line) for line in sentences.tolist()]
        going = [i for i, line in enumerate(lines) if not self._lost(line)]
        rows = torch.tensor(going, dtype=torch.int64, device=words.device)
        position = sentences.shape[1]
        possible = self.tokens[position] if position < len(self.tokens) else words
        columns = torch.nonzero(torch.isin(words, possible))[:, 0]
        if not going or not len(columns):
            return nats
        sines = self.test.extensions(sentences[rows], words[columns])
        fits = sines <= self.limit
        stuck = ~fits.any(1, keepdim=True)
        nearest = sines <= sines.kthvalue(min(_TRIED, len(columns)), 1, keepdim=True).values
        for row, column in torch.nonzero(stuck & nearest).tolist():
            self.strays.add((*lines[going[row]], int(words[columns[column]])))
        decades = -sines.clamp(min=1e-30).log10() - 1
        decades = decades.clamp(_FEWEST_DECADES, _MOST_DECADES)
        value = _DECADE_NATS * decades - _OUTSIDE * stuck
        value[~(fits | (stuck & nearest))] = -math.inf
        nats[rows[:, None], columns] = value.to(nats)
        return nats

    def accepted(self, ended: Sequence[Line]) -> tuple[list[SpanSentence], list[SpanSentence]]:
        """The finished sentences in the span, and the doubtful ones.

        A sentence that shares its beginning with an accepted one is accepted only if the remaining
        words are ten times nearer than the limit, because few words prove less than many. Otherwise
        it is doubtful: it may have a wrong ending, or be true with a last word that the model
        predicts too well to leave a trace.
        """
        if not ended:
            return [], []
        leaves = [torch.tensor(line[:-1]) for line in _leaves(ended)]
        device = self.test.subspace.basis.device
        lengths = torch.tensor([len(leaf) for leaf in leaves], device=device)
        sines = self.test.sines(pad_sequence(leaves, batch_first=True).to(device), lengths)
        seen: dict[Line, Tensor] = {}
        for leaf, sine in zip(leaves, sines, strict=True):
            line = tuple(leaf.tolist())
            seen.update({line[:n]: sine[:n] for n in range(1, len(line) + 1)})
        strict = self.limit / _STRICTER
        strays = {line: int((seen[line[:-1]] > strict).sum()) for line in ended}
        clear: list[SpanSentence] = []
        doubtful: list[SpanSentence] = []
        for line in sorted(ended, key=lambda line: (strays[line], -len(line))):
            sines_of = seen[line[:-1]]
            shared = max((_shared(line[:-1], sentence.ids) for sentence in clear), default=0)
            in_span = float((sines_of <= self.limit).double().mean())
            if shared == len(sines_of) or in_span < _IN_SPAN_SHARE:
                continue
            fits = sines_of[shared:] <= (strict if shared > 1 else self.limit)
            sure = bool(fits[-1]) and float(fits.double().mean()) >= _IN_SPAN_SHARE
            (clear if sure else doubtful).append(SpanSentence(line, float(sines_of.mean()), True))
        doubtful.sort(key=lambda sentence: sentence.sine)
        return clear, doubtful[: _TRIED * len(clear)]

    def _lost(self, line: Line) -> bool:
        """Whether a prefix has so many strays that it is given up."""
        if line in self.strays and line[:-1] in self.strays:
            return True
        strays = sum(line[:size] in self.strays for size in range(2, len(line) + 1))
        return strays > max(1.0, (1 - _IN_SPAN_SHARE) * len(line))


def read_evidence(model: AttackedModel, job: Job) -> SpanEvidence:
    """The evidence that the update of a causal model holds.

    Raises:
        CannotAttack: the tokens fill the width, the layers were not sent, the tokenizer has no end
            token, or time is up.
    """
    task = model.task
    if task.tokenizer.eos_token_id is None:
        raise CannotAttack(
            f"the tokenizer of {task.spec.model!r} has no end token, without which beams of "
            "different lengths cannot be compared",
            "Choose a tokenizer that has one.",
        )
    traces = read_traces(model)
    test = best_test(model, traces.before)
    shortlist = traces.shortlist(job)
    if job.expired:
        raise CannotAttack(
            "the time budget ended before all tokens were tested",
            "Give the attack a larger budget.",
        )
    limit = shortlist.limit if shortlist.clear else _UNCLEAR_SINE
    return SpanEvidence(test, shortlist.tokens, limit, traces.weights)


def recover(
    evidence: SpanEvidence,
    model: AttackedModel,
    grammar: Grammar,
    width: int,
    job: Job,
) -> Reconstruction | None:
    """Search by evidence and log-probability until the gradient of the batch is explained.

    A second search triples the largest sine in the span. If the number of examples is known, the
    missing ones are filled with the model's likeliest sentences. None if no sentence is found.

    Args:
        evidence: of this update.
        model: under attack.
        grammar: the words, the starts and the lengths.
        width: number of beams kept after each token.
        job: time budget and progress.
    """
    observation, task, network = model.observation, model.task, model.network
    if observation.knowledge.lengths is None:  # a well predicted last word leaves no trace
        longest = min(evidence.longest + 1, task.max_length)
        may_end = torch.ones(longest + 1, dtype=torch.bool)
        may_end[: grammar.starts.shape[1] + 2] = False
        grammar = replace(grammar, may_end=may_end)
    grammar = replace(grammar, ngram=0, banned=grammar.banned[:, :0], cover=False)
    prove = partial(proven, Prover(observation, task, network, evidence.first))
    sentences: dict[Line, SpanSentence] = {}
    good: list[SpanSentence] = []
    guess: Reconstruction | None = None
    trace, start = [], time.monotonic()
    for step, wider in enumerate((_FIRST_SEARCH, _SECOND_SEARCH), 1):
        again = replace(evidence, limit=wider * evidence.limit, strays=set())
        nats = partial(again.of, words=grammar.words)
        ended = search(network, grammar, width, evidence=nats, expired=lambda: job.expired)
        lines = [sentence.tokens for sentence in ended if sentence.tokens[-1] == grammar.end]
        new, doubtful = again.accepted(lines)
        sentences = {**{sentence.ids: sentence for sentence in new}, **sentences}
        if sentences:
            tried = prove([*sentences.values()])
            if doubtful and not tried.certified:
                whole = prove([*sentences.values(), *doubtful])
                tried = whole if whole.certified else tried
            if guess is None or tried.certified:
                guess, good = tried, [*sentences.values()]
            trace.append((step, time.monotonic() - start, tried.objective or 0.0))
            job.report(step, tried.objective or 0.0, task.text(next(iter(sentences))))
        if job.expired or (guess is not None and guess.certified):
            break
    if guess is None:
        return None
    missing = (observation.knowledge.num_examples or 0) - len(guess.guess)
    if missing > 0 and not job.expired:
        likely = [sentence.tokens for sentence in search(network, grammar, width)]
        rest = [SpanSentence(line, 1.0, False) for line in likely if line not in sentences]
        guess = prove([*good, *rest])
    return replace(guess, steps=len(trace), trace=tuple(trace), expired=job.expired)


def _leaves(lines: Iterable[Line]) -> list[Line]:
    """The sentences that are not, apart from their end token, a prefix of another one."""
    leaves: list[Line] = []
    for line in sorted(lines, key=len, reverse=True):
        if all(leaf[: len(line) - 1] != line[:-1] for leaf in leaves):
            leaves.append(line)
    return leaves


def _shared(line: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens in the common prefix."""
    pairs = zip(line, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(line), len(other)))
