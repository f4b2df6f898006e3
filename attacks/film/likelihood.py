"""Evidence for each next word where noise, pruning, signs or steps have blurred the span."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from attacks.base import Job, Reconstruction
from attacks.engine.beam import Sentence
from attacks.film.beam import Grammar, search
from attacks.proofs.gradient_match import GradientMatcher
from attacks.proofs.gradient_pursuit import choose
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import Evidence, total_ratio
from attacks.tokens.layout import batch_of
from attacks.tokens.prefix_search import varied
from attacks.tokens.soft_traces import SoftTraces, soft_traces
from attacks.tokens.word_posterior import shortlist
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.tasks.text import TextTask

_LIKELY_WORDS = 48
"""Words of a place, likeliest first, that the layers behind the attention are asked for."""
_FITTING_WORDS = 4
"""Longest sentence that the layers are not fitted to."""


@dataclass(frozen=True)
class SoftEvidence:
    """Log-likelihood ratios of next words in the layers of the first two blocks, in nats.

    Attributes:
        traces: of the update.
        words: that are likely to occur, ascending ``(word,)``.
        match: compares sentences with the whole update.
        count: sentences of the batch.
    """

    traces: SoftTraces
    words: Tensor
    match: GradientMatcher
    count: int

    def of(self, ratios: Tensor, sentences: Tensor, words: Tensor) -> Tensor:
        """Nats for each word as the next token of each sentence ``(beam, word)``.

        The layers behind the attention are asked for the likeliest words at the place alone, and
        all others are excluded.

        Args:
            ratios: before any attention, ``(position, vocabulary)``.
            sentences: prefixes of equal length, ``(beam, token)``.
            words: token ids, ascending.
        """
        first = ratios[sentences.shape[1], words]
        gain, few = first.topk(min(_LIKELY_WORDS, len(words)))
        total = gain.expand(len(sentences), -1)
        for layers in self._telling():
            kinds = [item.layer for item in layers]
            inputs = self.traces.layers.of_extensions(kinds, sentences, words[few])
            total = total + total_ratio(layers, inputs)
        nats = total.new_full((len(sentences), len(words)), -math.inf)
        nats[:, few] = total
        return nats

    def _telling(self) -> list[list[Evidence]]:
        both = (
            [item for item in part if item.tells] for part in (self.traces.near, self.traces.later)
        )
        return [part for part in both if part]


def read_likelihood(model: AttackedModel, job: Job, why: str) -> tuple[SoftEvidence | None, str]:
    """The evidence of a causal model's update, and a note on what ranks the sentences.

    There is none without an end token or time, or if the first layer says nothing. ``why`` is the
    reason that exact spans were not taken.
    """
    evidence = None if job.expired else _read(model)
    how = "Ranked by log-probability alone" if evidence is None else "Words by their likelihood"
    return evidence, f"{how}, since {why}."


def _read(model: AttackedModel) -> SoftEvidence | None:
    observation, task = model.observation, model.task
    if task.tokenizer.eos_token_id is None:
        return None
    try:
        traces = soft_traces(model, rows=True)
    except CannotAttack:
        return None
    count = observation.knowledge.num_examples or 1
    words = shortlist(traces, count)
    special = torch.tensor(task.spec.special_ids, dtype=torch.int64, device=words.device)
    words = words[~torch.isin(words, special)]
    usable = traces.first is not None and traces.shown and traces.layers.causal and len(words)
    if not usable:
        return None
    match = GradientMatcher.of(observation, task, words.device, signs=traces.signs)
    return SoftEvidence(traces, words, match, count)


def likeliest(
    evidence: SoftEvidence,
    task: TextTask,
    network: nn.Module,
    grammar: Grammar,
    width: int,
    rng: torch.Generator,
    job: Job,
) -> Reconstruction:
    """The sentences, of those of largest log-probability plus evidence, that explain the update.

    A second search has the layers fitted to the result of the first, as ``span`` does.

    Args:
        evidence: of this observation.
        task: defines the end of a sentence.
        network: as broadcast, in float32 and eval mode.
        grammar: the words, the starts and the lengths.
        width: number of beams kept after each token.
        rng: draws the words that each layer is fitted to.
        job: time budget and progress.
    """
    grammar = replace(grammar, ngram=0, banned=grammar.banned[:, :0], cover=False)
    match, count = evidence.match, evidence.count
    start = grammar.starts.shape[1]
    first = evidence.traces.ratios[0, grammar.starts[:, 0]]
    few = first.topk(min(_LIKELY_WORDS, len(first))).indices
    grammar = replace(grammar, starts=grammar.starts[few])
    evidence.traces.grow(grammar.starts[0].tolist() if len(few) == 1 else [], count, rng)
    guess: Certificate = "guess"
    trace, begin = [], time.monotonic()
    scored: list[Sentence] = []
    for step in (1, 2):
        nats = partial(evidence.of, evidence.traces.ratios, words=grammar.words)
        sentences = search(
            network, grammar, width, whole=True, evidence=nats, expired=lambda: job.expired
        )
        # The evidence of a whole sentence counts, not that of its mean word.
        scored += [
            Sentence(sentence.score * (len(sentence.tokens) - start), sentence.tokens)
            for sentence in sentences
        ]
        scored.sort(key=lambda sentence: -sentence.score)
        # Evidence against the later words ends a sentence early; the whole gradient tells lengths.
        tried = [sentence.ids for sentence in varied(scored, start, count)]
        best = choose(match, [torch.tensor(line, device=first.device) for line in tried], count)
        lines = [tuple(line.tolist()) for line in best.lines]
        lines += [line for line in tried if line not in lines][: count - len(lines)]
        trace.append((step, time.monotonic() - begin, -scored[0].score))
        job.report(step, -scored[0].score, task.text(lines[0]))
        words = [line[:-1] if line[-1] == grammar.end else line for line in lines]
        words = [line for line in words if len(line) > _FITTING_WORDS]
        if job.expired or step == 2 or not words:
            break
        evidence.traces.fit(words, rng)
    return Reconstruction(
        batch_of(lines, task, [-1] * len(lines)),
        objective=trace[-1][2],
        steps=len(trace),
        confidence=(guess,) * len(lines),
        trace=tuple(trace),
        expired=job.expired,
    )
