"""FILM (Gupta et al., NeurIPS 2022): a language model puts the words of an update in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.film.bag import Bag, BagRule, read_bag
from attacks.film.beam import Grammar, read_grammar, search
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
