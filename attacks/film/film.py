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
from attacks.film.evidence import SpanEvidence, read_evidence, recover
from attacks.film.phrases import Fluency, Phrases, TokenIds, Words, improve
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.types import Batch


@dataclass(frozen=True)
class FILM(Attack):
    """Bag of words from the word rows, beam search, then moves of phrases and of words.

    Gupta et al. 2022, with the model under attack, as broadcast, for a prior. The published code
    takes the bag and the counts of its words from the private text; here they come from the
    update, and counts are not known. It searches 40 tokens without an end; here sentences end
    with the end token where the task adds one, and the position rows say how long they are: a
    single example has exactly that length. Their groups of diverse beams, which the paper does not
    mention, are left out. Phrases are moved as in Malkin et al. 2021. Several sentences come from
    searching again with the n-grams of those found penalised.

    All sentences are a ``guess``; an encoder is not attacked, since it predicts no next token. The
    objective is the mean over the sentences of perplexity plus ``beta`` times a gradient norm.

    With ``evidence = "span"`` the beams also add up what the first block's gradients say for each
    next word (``attacks.film.evidence``), as DAGER (Petrov et al. 2024) tests it, and the bag
    comes from them, so that frozen embeddings do not matter. It takes an end token, and fewer
    tokens in the batch than the width; elsewhere ``note`` says why, and log-probability alone
    decides. Sentences in the span are moved no more, n-grams may repeat, and all examples of a
    known number are searched for. Confidence and objective are then those of ``span``. Unlike that
    attack, no gap among the tokens is needed, and a sentence survives a word too certain to leave a
    trace.

    Attributes:
        bag: which rows count as words, see ``attacks.film.bag.read_bag``; ``none`` is the control
            that takes nothing from the update and searches with the language model alone. ``span``
            are the tokens in the span of the first layer, and ``auto`` too, with such evidence.
        evidence: what ranks the beams beside the model's probabilities.
        threshold: for ``bag = "energy"``, standard deviations of noise.
        beams: width of the search.
        shares: whose probabilities the beams add up: those of the whole ``vocabulary``, or shares
            among the words of the ``bag``, which takes only those rows of the head.
        cover: a single example of known length has to hold every word found; not in the paper.
        ngram: length of the n-grams that a sentence should not repeat; 0: it may.
        penalty: nats for each repetition; the authors' code forbids them, as the default does.
        max_tokens: most tokens of a sentence where the position rows do not tell.
        sentences: how many are searched for, at most.
        beta: weight of the gradient norm beside the perplexity.
        phrase_steps: steps of moving phrases, each of ``candidates`` moves.
        token_steps: steps of swapping, deleting and inserting words.
        phrase_patience: steps without gain that end the moving of phrases.
        token_patience: steps without gain that end the moving of words.
    """

    title: ClassVar[str] = "FILM"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})

    bag: BagRule = "auto"
    evidence: Literal["none", "span"] = "none"
    threshold: Annotated[float, Field(gt=0)] = 5.0
    beams: Annotated[int, Field(ge=1)] = 32
    shares: Literal["bag", "vocabulary"] = "vocabulary"
    cover: bool = False
    ngram: Annotated[int, Field(ge=0)] = 2
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1000.0
    max_tokens: Annotated[int, Field(ge=3)] = 40
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
        evidence, note = self._evidence(observation, task, network, job)
        bag, note = self._bag(observation, task, network, evidence, note, job)
        grammar = read_grammar(
            observation,
            task,
            bag,
            max_tokens=self.max_tokens,
            ngram=self.ngram,
            penalty=self.penalty,
            cover=self.cover,
        )
        if evidence is not None and self.evidence == "span":
            exact = recover(evidence, observation, task, network, grammar, self.beams, job)
            if exact is not None:
                return exact
            note = "Log-probability alone, since no sentence in the span was found."
        score = Fluency(network, self.beta)
        found: dict[TokenIds, float] = {}
        guess: Certificate = "guess"
        trace, start = [], time.monotonic()
        for step in range(1, self.sentences + 1):
            beams = search(
                network,
                grammar,
                self.beams,
                whole=self.shares == "vocabulary",
                expired=lambda: job.expired,
            )
            best = next((f.tokens for f in beams if f.tokens not in found), beams[0].tokens)
            sentence, objective = self._improve(best, task, network, grammar, score, rng, job)
            found.setdefault(sentence, objective)
            job.report(step, objective, task.text(sentence))
            trace.append((step, time.monotonic() - start, objective))
            if job.expired:
                break
            grammar = grammar.without(sentence)
        lines = sorted(found, key=lambda sentence: found[sentence])
        ids = [torch.tensor(line) for line in lines]
        return Reconstruction(
            Batch(
                pad_sequence(ids, batch_first=True, padding_value=task.spec.pad_id or 0),
                torch.full((len(ids),), -1),
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
            ),
            objective=sum(found.values()) / len(found),
            steps=len(trace),
            confidence=(guess,) * len(ids),
            trace=tuple(trace),
            expired=job.expired,
            note=note,
        )

    def _evidence(
        self, observation: Observation, task: LanguageModelling, network: nn.Module, job: Job
    ) -> tuple[SpanEvidence | None, str]:
        """What the span says, or why it says nothing."""
        if "span" not in {self.evidence, self.bag}:
            return None, ""
        try:
            return read_evidence(observation, task, network, job), ""
        except CannotAttack as error:
            if self.bag == "span":
                raise
            return None, f"Log-probability alone, since {error.reason}."

    def _bag(
        self,
        observation: Observation,
        task: LanguageModelling,
        network: nn.Module,
        evidence: SpanEvidence | None,
        note: str,
        job: Job,
    ) -> tuple[Bag, str]:
        """The words to search with, and the note on what failed so far and here."""
        everything = Bag(torch.arange(len(task.tokenizer), device=job.device), None)
        if self.bag == "none":
            return everything, note
        if evidence is not None and self.bag in {"auto", "span"}:
            return Bag(evidence.words, evidence.longest), note
        try:
            return read_bag(observation, network, self.bag, self.threshold, job.device), note
        except CannotAttack as error:
            if not note or self.bag != "auto":
                raise
            return everything, f"{note} All words, since {error.reason}."

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
        """Move phrases, then words, then cut at the first full stop where that scores better."""
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
