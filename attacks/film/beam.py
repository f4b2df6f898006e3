"""Beam search over given words with a causal language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, Sentence, grow
from attacks.film.bag import Bag
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.language_modelling import LanguageModelling

_REPEATED = 1000.0  # nats off for each repetition, which the authors' code forbids
_LONGEST = 40  # tokens of a sentence where the position rows do not tell, as in the paper


@dataclass(frozen=True, slots=True)
class Grammar:
    """The constraints on a sentence.

    Attributes:
        words: token ids to choose from, int64 ``(word,)``, without ``end``.
        starts: possible beginnings, int64 ``(start, token)``.
        may_end: whether a sentence may have this many tokens, bool ``(longest + 1,)``.
        end: the token that ends a sentence and counts in its length; None if nothing marks the end.
        ngram: length of the n-grams that should not occur twice; 0 permits any.
        banned: n-grams that count as having occurred before, int64 ``(n-gram, ngram)``.
    """

    words: Tensor
    starts: Tensor
    may_end: Tensor
    end: int | None
    ngram: int
    banned: Tensor

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
    observation: Observation, task: LanguageModelling, bag: Bag, ngram: int
) -> Grammar:
    """The grammar from the facts about the batch and FILM's option of that name.

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
    longest = min(bag.longest or _LONGEST, task.max_length)
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
    return Grammar(words, starts, may_end, end, ngram, banned)


@torch.no_grad()
def search(network: nn.Module, grammar: Grammar, width: int, job: Job) -> list[Sentence]:
    """The likeliest sentences, best first; unfinished ones if the job ends the search early.

    Prefixes are ranked by the sum of log-probabilities, and sentences by their mean over tokens in
    nats, since these differ in length.

    Args:
        network: a causal model of transformers, in eval mode.
        grammar: with ``words`` ascending.
        width: number of prefixes kept after each token.
        job: its time and its budget of work.
    """
    starts = grammar.starts
    prefixes = Prefixes(starts, torch.zeros(len(starts), device=starts.device))
    sentences = grow(_Fluent(network, grammar, width), prefixes, grammar.longest, job)
    return sorted(sentences, key=lambda sentence: -sentence.score)


class _Fluent:
    """Scores prefixes by the log-probability that a language model gives them."""

    def __init__(self, network: nn.Module, grammar: Grammar, width: int) -> None:
        from transformers import DynamicCache

        self._body: Any = network.base_model
        self._table: Tensor = network.get_output_embeddings().weight  # type: ignore[operator]
        self._grammar, self._width = grammar, width
        self._cache, self._ends = DynamicCache(), False

    def score(self, prefixes: Prefixes) -> NextWords[Sentence]:
        """All words, and the prefixes with the end token if they may have it."""
        ids, grammar = prefixes.ids, self._grammar
        seen = self._body(
            input_ids=ids[:, -1:],
            attention_mask=torch.ones_like(ids),  # transformers warns if no mask is given
            past_key_values=self._cache,
            use_cache=True,
        )
        logs = (seen.last_hidden_state[:, -1] @ self._table.T).log_softmax(1)
        ended: list[Sentence] = []
        if grammar.end is not None and grammar.may_end[prefixes.length + 1]:
            ended = self._sentences(ids, prefixes.score + logs[:, grammar.end], grammar.end)
        total = prefixes.score[:, None] + logs[:, grammar.words]
        total = total - _REPEATED * grammar.repeats(ids)
        return NextWords(grammar.words.expand_as(total), total, ended, self._width, self._width)

    def extend(
        self, prefixes: Prefixes, words: NextWords[Sentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        """The prefixes ``rows`` with the words in ``columns``."""
        self._cache.reorder_cache(rows)
        ids = prefixes.longer(rows, words.ids[rows, columns])
        return Prefixes(ids, words.score[rows, columns])

    def finish(self, prefixes: Prefixes) -> list[Sentence]:
        """The prefixes as they are, where no sentence has ended."""
        return [] if self._ends else self._sentences(prefixes.ids, prefixes.score)

    def _sentences(self, ids: Tensor, totals: Tensor, *end: int) -> list[Sentence]:
        self._ends = True
        length = max(ids.shape[1] + len(end) - self._grammar.starts.shape[1], 1)
        pairs = zip(totals.tolist(), ids.tolist(), strict=True)
        return [Sentence(total / length, (*line, *end)) for total, line in pairs]
