"""FILM (Gupta et al., NeurIPS 2022): a language model puts the words of an update in order."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.engine.beam import NextWords, Prefixes, Sentence, grow
from attacks.film.bag import Bag, BagRule, read_bag
from attacks.film.phrases import Fluency, Phrases, TokenIds, Words, improve
from attacks.tokens.attacked_model import AttackedModel
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.types import Batch


@dataclass(frozen=True)
class FILM(Attack):
    """Collect the words of an update, and order them by beam search and local rearrangement.

    Gupta et al. 2022: the bag of words comes from the word rows, a beam search with a language
    model makes a sentence of it, and moves of phrases (Malkin et al. 2021) and then of words
    improve it. The language model is the model under attack, as broadcast.

    We differ from the published code in four points. (1) It takes the bag and the counts of its
    words from the private text; here the bag comes from the update, and the counts are unknown.
    (2) It searches 40 tokens without an end; here a sentence ends with the end token, if the task
    adds one, and the position rows limit its length, which is exact for a single example. (3) Its
    groups of diverse beams, which the paper does not mention, are left out. (4) Further sentences
    are found by searching again with a penalty on the n-grams of those found.

    Every sentence is a ``guess``. Encoders are not attacked, as they predict no next token. The
    objective is the mean over sentences of perplexity plus ``beta`` times a gradient norm.

    Attributes:
        bag: the rows that count as words, see ``attacks.film.bag.read_bag``. ``none`` is a control
            that searches with the language model alone.
        beams: width of the search.
        ngram: length of the n-grams that a sentence should not repeat; 0 permits any.
        sentences: largest number of sentences searched for.
        beta: weight of the gradient norm relative to the perplexity.
        phrase_steps: number of phrase-moving steps, each of ``candidates`` moves.
        token_steps: number of steps that swap, delete and insert words.
        phrase_patience: steps without improvement that end the moving of phrases.
        token_patience: steps without improvement that end the moving of words.
    """

    title: ClassVar[str] = "FILM"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})

    bag: BagRule = "auto"
    beams: Annotated[int, Field(ge=1)] = 32
    ngram: Annotated[int, Field(ge=0)] = 2
    sentences: Annotated[int, Field(ge=1, le=100)] = 1
    beta: Annotated[float, Field(ge=0)] = 1.0
    phrase_steps: Annotated[int, Field(ge=0)] = 200
    token_steps: Annotated[int, Field(ge=0)] = 200
    phrase_patience: Annotated[int, Field(ge=1)] = 128
    token_patience: Annotated[int, Field(ge=1)] = 50
    candidates: Annotated[int, Field(ge=1)] = 64

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """At most ``sentences`` sentences, likeliest first."""
        if not isinstance(task, LanguageModelling):
            raise CannotAttack(
                f"{task.spec.model!r} is trained for {task.spec.kind} and predicts no next token",
                "Choose a language model of the GPT-2 type, or another attack.",
            )
        network = task.model(observation.sent, device=job.device)
        observation = AttackedModel.of(observation, task, network).observation
        bag = self._bag(observation, task, network, job)
        grammar = read_grammar(observation, task, bag, self.ngram)
        score = Fluency(network, self.beta)
        guessed: dict[TokenIds, float] = {}
        guess: Certificate = "guess"
        trace, start = [], time.monotonic()
        for step in range(1, self.sentences + 1):
            beams = search(network, grammar, self.beams, job)
            best = next((beam.ids for beam in beams if beam.ids not in guessed), beams[0].ids)
            sentence, objective = self._improve(best, task, network, grammar, score, rng, job)
            guessed.setdefault(sentence, objective)
            job.report(step, objective, task.text(sentence))
            trace.append((step, time.monotonic() - start, objective))
            if job.expired:
                break
            grammar = grammar.without(sentence)
        lines = sorted(guessed, key=lambda sentence: guessed[sentence])
        ids = [torch.tensor(line) for line in lines]
        return Reconstruction(
            Batch(
                pad_sequence(ids, batch_first=True, padding_value=task.spec.pad_id or 0),
                torch.full((len(ids),), -1),
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
            ),
            objective=sum(guessed.values()) / len(guessed),
            steps=len(trace),
            confidence=(guess,) * len(ids),
            trace=tuple(trace),
            expired=job.expired,
        )

    def _bag(
        self, observation: Observation, task: LanguageModelling, network: nn.Module, job: Job
    ) -> Bag:
        """The words to search with."""
        if self.bag == "none":
            return Bag(torch.arange(len(task.tokenizer), device=job.device), None)
        return read_bag(observation, network, self.bag, job.device)

    def _improve(
        self,
        sentence: TokenIds,
        task: LanguageModelling,
        network: nn.Module,
        grammar: Grammar,
        score: Fluency,
        rng: torch.Generator,
        job: Job,
    ) -> tuple[TokenIds, float]:
        """Move phrases, then words; then cut at the first full stop if that scores better."""
        front = int(task.tokenizer.bos_token_id is not None)
        back = int(grammar.end is not None and sentence[-1] == grammar.end)
        may_end = grammar.may_end.tolist()

        def fits(length: int) -> bool:
            return length < len(may_end) and bool(may_end[length])

        phrases = Phrases(network, lambda token: not task.text([token])[:1].isalpha(), front)
        words = Words(grammar.words, fits, (front, back))
        for moves, steps, patience in (
            (phrases, self.phrase_steps, self.phrase_patience),
            (words, self.token_steps, self.token_patience),
        ):
            sentence, objective = improve(
                sentence,
                score,
                moves,
                steps=steps,
                patience=patience,
                count=self.candidates,
                rng=rng,
                expired=lambda: job.expired,
            )
        stops = [i for i, token in enumerate(sentence) if task.text([token]).strip() in {*".?!"}]
        if stops:
            short = sentence[: stops[0] + 1] + sentence[len(sentence) - back :]
            shorter = float(score([short], float("inf")))
            if fits(len(short)) and shorter < objective:
                return short, shorter
        return sentence, objective


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
