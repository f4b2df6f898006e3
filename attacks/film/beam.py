"""Beam search over given words with a causal language model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.film.bag import Bag
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.language_modelling import LanguageModelling

_UNCOVERED = 1000.0
"""Nats taken off a beam that leaves no room for a word it has to hold; more than any sentence
costs."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The constraints on a sentence.

    Attributes:
        words: token ids to choose from, int64 ``(word,)``, without ``end``.
        starts: possible beginnings, int64 ``(start, token)``.
        may_end: whether a sentence may have this many tokens, bool ``(longest + 1,)``.
        end: the token that ends a sentence and counts in its length; None if nothing marks the end.
        ngram: length of the n-grams that should not occur twice; 0 permits any.
        penalty: nats subtracted for each earlier occurrence of the n-gram that a token completes.
        banned: n-grams that count as having occurred before, int64 ``(n-gram, ngram)``.
        cover: whether a sentence has to hold every word.
    """

    words: Tensor
    starts: Tensor
    may_end: Tensor
    end: int | None
    ngram: int
    penalty: float
    banned: Tensor
    cover: bool = False

    @property
    def longest(self) -> int:
        """Largest number of tokens in a sentence."""
        return len(self.may_end) - 1

    def repeats(self, sequences: Tensor) -> Tensor:
        """Earlier occurrences of the n-gram that each word would complete, ``(beam, word)``."""
        counts = torch.zeros(len(sequences), len(self.words), device=sequences.device)
        if not self.ngram:
            return counts
        context = sequences[:, sequences.shape[1] - self.ngram + 1 :]
        earlier = sequences[:, :0].unsqueeze(-1).expand(-1, -1, self.ngram)
        if sequences.shape[1] >= self.ngram:
            earlier = sequences.unfold(1, self.ngram, 1)
        known = torch.cat([earlier, self.banned.expand(len(sequences), -1, -1)], 1)
        same = (known[..., :-1] == context[:, None]).all(-1)
        last = known[..., -1].contiguous()
        place = torch.searchsorted(self.words, last).clamp(max=len(self.words) - 1)
        same &= self.words[place] == last
        return counts.scatter_add_(1, place, same.float())

    def without(self, sentence: tuple[int, ...]) -> Grammar:
        """The grammar with the n-grams of a sentence banned, except those with special tokens."""
        if not self.ngram or len(sentence) < self.ngram:
            return self
        grams = torch.tensor(sentence, device=self.words.device).unfold(0, self.ngram, 1)
        grams = grams[torch.isin(grams, self.words).all(1)]
        return replace(self, banned=torch.cat([self.banned, grams]))


def read_grammar(
    observation: Observation,
    task: LanguageModelling,
    bag: Bag,
    *,
    max_tokens: int,
    ngram: int,
    penalty: float,
    cover: bool,
) -> Grammar:
    """The grammar from the facts about the batch and FILM's options of the same names.

    Raises:
        CannotAttack: there is no word to choose from.
    """
    start, end = task.tokenizer.bos_token_id, task.tokenizer.eos_token_id
    special = torch.tensor(task.spec.special_ids, dtype=torch.int64, device=bag.words.device)
    words = bag.words[~torch.isin(bag.words, special)]
    if not len(words):
        raise CannotAttack(
            "the bag holds special tokens only",
            "Set bag = 'none' to search with the language model alone.",
        )
    if start is not None:
        starts = torch.tensor([[start]], device=words.device)
    else:
        first = [word for word in words.tolist() if task.text([word])[:1].isupper()]
        starts = torch.tensor(first or words.tolist(), device=words.device)[:, None]
    longest = min(bag.longest or max_tokens, task.max_length)
    single = bag.longest is not None and observation.knowledge.num_examples == 1
    may_end = torch.zeros(longest + 1, dtype=torch.bool)
    if observation.knowledge.lengths is not None:
        for length in observation.knowledge.lengths:
            may_end[min(length, longest)] = True
    elif single:
        may_end[longest] = True
    else:
        may_end[starts.shape[1] + 1 + (end is not None) :] = True
    banned = torch.zeros(0, ngram, dtype=torch.int64, device=words.device)
    cover = cover and single and len(words) <= longest - starts.shape[1]
    return Grammar(words, starts, may_end, end, ngram, penalty, banned, cover)


@dataclass(frozen=True, slots=True)
class BeamSentence:
    """A sentence with its start and end.

    Attributes:
        score: mean over its tokens of log-probability, in nats.
    """

    tokens: tuple[int, ...]
    score: float


@torch.no_grad()
def search(
    network: nn.Module,
    grammar: Grammar,
    width: int,
    *,
    whole: bool = False,
    expired: Callable[[], bool] = lambda: False,
) -> list[BeamSentence]:
    """The likeliest sentences, best first; unfinished ones if ``expired`` ends the search early.

    Beams are ranked by the sum of log-probabilities, and finished sentences by their mean, since
    these differ in length. If every word has to occur, beams would put off the words that are hard
    to place; the first use of a word therefore earns a credit of minus its mean log-probability.

    Args:
        network: a causal model of transformers, in eval mode.
        grammar: with ``words`` ascending.
        width: number of beams kept after each token.
        whole: normalise over the whole vocabulary; otherwise over the allowed words, so that only
            their rows of the head are computed.
        expired: asked before each token.
    """
    from transformers import DynamicCache

    body: Any = network.base_model
    table: Tensor = network.get_output_embeddings().weight  # type: ignore[operator]
    words, end = grammar.words, grammar.end
    head = table[words] if end is None else torch.cat([table[words], table[[end]]])
    beams, cache = grammar.starts, DynamicCache()
    scores = torch.zeros(len(beams), device=beams.device)
    unused = beams[:, -1:] != words
    credit = _credit(body, head, words) if grammar.cover else torch.zeros_like(scores)
    newest, begun, done = beams, beams.shape[1], list[BeamSentence]()
    while beams.shape[1] < grammar.longest and not expired():
        whole_text = torch.ones_like(beams)  # transformers warns if no mask is given
        seen = body(
            input_ids=newest, attention_mask=whole_text, past_key_values=cache, use_cache=True
        )
        hidden = seen.last_hidden_state[:, -1]
        logits = hidden @ head.T
        norm = (hidden @ table.T if whole else logits).logsumexp(1, keepdim=True)
        total = scores[:, None] + logits - norm
        length = beams.shape[1] + 1
        if end is not None:
            if grammar.may_end[length]:
                done += _ended(beams, total[:, -1], end, begun)
            total = total[:, :-1]
        total = total - grammar.penalty * grammar.repeats(beams)
        if grammar.cover:
            slots = grammar.longest - (end is not None) - beams.shape[1]
            total = total + credit * unused
            total -= _UNCOVERED * ((unused.sum(1, keepdim=True) >= slots) & ~unused)
        scores, best = total.flatten().topk(min(width, total.numel()))
        parents, places = best // len(words), best % len(words)
        newest = words[places][:, None]
        beams = torch.cat([beams[parents], newest], 1)
        cache.reorder_cache(parents)
        unused = unused[parents] & (newest != words)
    if end is None or not done:
        done = [
            BeamSentence(tuple(beam), score / max(len(beam) - begun, 1))
            for beam, score in zip(beams.tolist(), scores.tolist(), strict=True)
        ]
    return sorted(done, key=lambda sentence: -sentence.score)


def _credit(body: Any, head: Tensor, words: Tensor) -> Tensor:  # noqa: ANN401
    """Minus the log of each word's mean probability over all preceding words, nats ``(word,)``."""
    each = words[:, None]
    seen = body(input_ids=each, attention_mask=torch.ones_like(each), use_cache=False)
    hidden = seen.last_hidden_state[:, -1]
    shares = (hidden @ head.T).log_softmax(1)[:, : len(words)]
    credit: Tensor = math.log(len(words)) - shares.logsumexp(0)
    return credit


def _ended(beams: Tensor, totals: Tensor, end: int, begun: int) -> list[BeamSentence]:
    length = beams.shape[1] + 1 - begun
    return [
        BeamSentence((*beam, end), total / length)
        for beam, total in zip(beams.tolist(), totals.tolist(), strict=True)
    ]
