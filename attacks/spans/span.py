"""Read whole sentences off the gradients of the first block's linear layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.spans.adapters import AdapterSpan
from attacks.spans.candidates import Candidates
from attacks.spans.cuts import CUTS
from attacks.spans.descent import Descent
from attacks.spans.judges import best_judge, read_traces
from attacks.spans.sentences import Judge, SpanSentence, grow, proven
from attacks.spans.subspace import Subspace
from fedsim.capture import CaptureKey, Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask


@dataclass(frozen=True)
class Span(Attack):
    """Exact text by testing tokens against the span of inputs (DAGER, Petrov et al. 2024).

    The gradient of a linear layer's weight is ``sum_t x_t (dL/dy_t)^T``: with fewer tokens than
    the width, only inputs of the batch lie in its column space. Query, key and value of the first
    block say which tokens the batch holds. No labels, lengths, embedding gradients or priors are
    needed; any positive scale of the update does.

    We differ from DAGER in what is tested and how. (1) Sentences are judged by the layers behind
    the first attention, the feed-forward output with its fourfold width above all: it tells right
    from wrong up to as many tokens as the width, where the second block's query does no more, and
    no last block of a classifier, which has a gradient for its pooled token only, is ever used.
    (2) No absolute thresholds: ranks and tokens are cut at gaps. (3) The next tokens of a causal
    model's prefix are tried side by side in one run. (4) An encoder's sentences are found by
    descent on the mean angle instead of trying all combinations. (5) The classes come from the
    head's gradient by least squares, and the gradient of the whole batch proves it.

    Confidence is ``certified`` for all sentences of a batch whose gradient is the observed one but
    for rounding; ``in_span`` for a sentence that the span singles out, in a batch that is not
    proven (a sentence is missing, dropout, several local steps, noise); else ``guess``. The
    objective is the relative error of that gradient.

    Attributes:
        tolerance: relative error of a float32 gradient that counts as rounding; coarser wires add
            their own, and none above 0.01 certifies.
        beam: prefixes of a causal model that go on at each position.
        starts: random sentences that an encoder's descent starts from, at most.
        bag: leave out the words whose embedding row is zero, where the client sends an untied
            table.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})

    tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-4
    beam: Annotated[int, Field(ge=1)] = 256
    starts: Annotated[int, Field(ge=1)] = 40
    bag: bool = True

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Different inputs against the room in the first block's spans, by a single text."""
        task, network, what = prospect.task, prospect.network, "different inputs"
        assert isinstance(task, TextTask)
        received = task.gradient(network, prospect.example)
        known, key = Knowledge(optimizer=prospect.optimizer), CaptureKey(round=1, client=0)
        observation = Observation(key, prospect.weights, received, "gradient", known)
        try:
            traces = read_traces(observation, task, network)
            behind = best_judge(traces.layers, traces.before, observation).subspace
        except CannotAttack as error:
            return Feasibility("red", what, prospect.inputs, None, error.reason)
        limit = min(room(traces.before), behind.most - 1)
        return prospect.judge(what, prospect.inputs, limit)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The sentences in the span, with what is proven of them."""
        assert isinstance(task, TextTask)
        network = task.model(observation.sent, device=job.device)
        ends = task.tokens([""])[0]
        traces = read_traces(observation, task, network, rows=self.bag)
        judge = best_judge(traces.layers, traces.before, observation)
        shortlist = traces.shortlist(observation, task, job)
        first = traces.weights(observation)
        causal = traces.layers.causal
        guess: Reconstruction | None = None
        for wider in (1, CUTS.retry) if causal and shortlist.clear else (1,):
            found, expired = self._search(observation, judge, shortlist, ends, wider, rng, job)
            if task.spec.kind == "language-modelling" and task.tokenizer.eos_token_id is not None:
                # Nothing is predicted from the last token, so it leaves no trace.
                found = [replace(one, ids=(*one.ids, ends[-1])) for one in found]
            new = proven(observation, task, network, first, found, self.tolerance)
            if guess is None or "certified" in (new.confidence or ()):
                guess = replace(new, expired=expired)
            if expired or "certified" in (guess.confidence or ()):
                break
        assert guess is not None
        return guess

    def _search(
        self,
        observation: Observation,
        judge: Judge,
        shortlist: Candidates,
        ends: list[int],
        wider: float,
        rng: torch.Generator,
        job: Job,
    ) -> tuple[list[SpanSentence], bool]:
        count, lengths = observation.knowledge.num_examples, observation.knowledge.lengths
        if not shortlist.clear:
            return ranked(shortlist, count or 1), job.expired
        if judge.layers.causal:
            return grow(judge, shortlist.tokens, wider * shortlist.limit, self.beam, job)
        if len(ends) < 2:
            raise CannotAttack(
                "the tokenizer puts no end token behind a sentence, which the descent of an "
                "encoder needs",
                "Choose a model of the BERT or GPT-2 type.",
            )
        stop = ends[-1]
        possible = [
            position + 1
            for position, tokens in enumerate(shortlist.tokens)
            if position and stop in tokens.tolist() and position + 1 in (lengths or [position + 1])
        ]
        if not possible:
            return ranked(shortlist, count or 1), job.expired
        descent = Descent(judge, shortlist.tokens, stop, possible)
        expired = descent.run(self.starts, count, rng, job)
        return descent.found, expired


def room(found: Subspace) -> int:
    """The largest rank that leaves room to tell tokens."""
    if isinstance(found, AdapterSpan):
        return found.most - 1
    ranks = range(found.most, 0, -1)
    spans = (Subspace(torch.empty(found.width, rank, device="meta"), found.most) for rank in ranks)
    return next((one.rank for one in spans if not one.full), 0)


def ranked(shortlist: Candidates, count: int) -> list[SpanSentence]:
    """The nearest tokens of each position, where no gap tells which are in the span."""
    return [
        SpanSentence(
            tuple(int(tokens[min(i, len(tokens) - 1)]) for tokens in shortlist.tokens), 1.0, False
        )
        for i in range(count)
    ]
