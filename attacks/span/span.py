"""Whole sentences from the gradients of the first block's layers, of a round or of several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.declared import recovered
from attacks.observed.readings import read
from attacks.observed.same_rows import round_by_round
from attacks.proofs.batch_likelihood import BatchLikelihood
from attacks.span.decoding import LikelihoodSearch, decodable
from attacks.span.exact.search import ExactSearch
from attacks.span.exact.sparse_recovery import SparseRecovery
from attacks.tokens.adapters import AdapterSpan, first_round, is_personal
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.exact_traces import read_traces
from attacks.tokens.span_membership import best_test
from attacks.tokens.subspace import Subspace
from attacks.tokens.target_shift import shift_note
from fedsim.defenses.base import Distortion
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Span(Attack):
    """Recover exact texts by testing tokens against the span of a layer's inputs.

    DAGER (Petrov et al. 2024): the gradient of a linear layer's weight is
    ``sum_t x_t (dL/dy_t)^T``. With fewer tokens than dimensions, only inputs of the batch lie in
    its column space, and the query, key and value of the first block reveal the tokens. No labels,
    lengths, embedding gradients or priors are needed, and the update may have any positive scale.

    We differ from DAGER in seven points. (1) Sentences are tested at the layers behind the first
    attention, preferably at the feed-forward output: being four times as wide, it separates right
    from wrong for as many tokens as the model's width, where the query of the second block fails.
    The last block of a classifier, whose gradient covers the pooled token alone, is never used.
    (2) Ranks and tokens are cut at gaps instead of absolute thresholds. (3) All next tokens of a
    causal model's prefix are tested in one forward pass. (4) The words of an encoder's sentence and
    their order follow from the gradients of query and key (``WordClusters``), and a descent on the
    mean sine, instead of enumeration, settles what they leave open. (5) Classes follow from the
    head's gradient by least squares, and the gradient of the whole batch proves the result. (6)
    Where positions are rotary or relative, words are tested once for all positions; their order
    follows behind the attention. (7) Adapters of a smaller rank than a sentence has tokens still
    tell it (``SparseRecovery``).

    Where noise, pruning, signs, a coarse wire, dropout or several steps blur the span, no token is
    accepted or rejected: each has a likelihood (``Evidence``), and a causal model's sentences are
    decoded by beam search over it, with what the model says of the next word before and after the
    update. A regression of the update on all prefixes visited tells which of them are of the batch
    (``PrefixFit``), and sentences are searched on from where their support ends. An encoder's
    words are chosen together, for the energy of the first layer's gradient in the span of all their
    inputs (``JointWords``). All adapters are read at once (``MatchedGrowth``). Nothing is declared.

    Confidence is ``certified`` for all sentences of a batch whose gradient equals the observed one
    up to rounding. In a batch that is not proven (because of a missing sentence, dropout, several
    local steps or noise), a sentence that the span singles out is ``in_span``, any other a
    ``guess``. The objective is the relative error of that gradient.

    Attributes:
        work: tokens that the search of one reply may put through the network, forward or forward
            and back, before it returns its best guess. None: until the search ends by itself.
        over_rounds: read the mean of all rounds so far in which the client held the same rows, see
            ``attacks.span.span``.
        adaptive: turn the texts that were read into those that the declared defense changed.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    estimates: ClassVar[frozenset[Distortion]] = frozenset(
        {"scale", "noise", "sparsity", "sign", "rounding"}
    )
    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"inputs"})

    work: Annotated[int, Field(ge=1)] | None = None
    over_rounds: bool = False
    adaptive: bool = False

    objective_unit: ClassVar[str] = "nats"

    @property
    def grouped_by(self) -> Grouping:
        """Each observation alone, or those of a client."""
        return "same_client" if self.over_rounds else self.grouping

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Distinct inputs compared with the room in the first block's spans, for a single text.

        Amber where sentences are decoded from likelihoods and are not proven.
        """
        task, network, what = prospect.task, prospect.network, "different inputs"
        assert isinstance(task, TextTask)
        received = task.gradient(network, prospect.example)
        known, key = Knowledge(optimizer=prospect.optimizer), CaptureKey(round=1, client=0)
        observation = Observation(key, prospect.weights, received, "gradient", known)
        model = AttackedModel.of(observation, task, network)
        try:
            traces = read_traces(model)
            behind = best_test(model, traces.before).subspace
            limit = min(room(traces.before), behind.most - 1)
            feasibility = prospect.judge(what, prospect.inputs, limit)
        except CannotAttack as error:
            feasibility = Feasibility("red", what, prospect.inputs, None, error.reason)
        if feasibility.colour == "green" or not decodable(model):
            return feasibility
        return replace(
            feasibility, colour="amber", reason=f"{feasibility.reason}; decoded, not proven"
        )

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One guess for each observation."""
        if not self.over_rounds:
            return super().reconstruct(observations, task, rngs, job)
        assert isinstance(task, TextTask)

        def search(seen: Observation, position: int) -> Reconstruction:
            return self.guess(seen, task, rngs[position], job)

        return over_rounds(observations, search, task, job)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The sentences in the span with their confidence, else the likeliest ones."""
        assert isinstance(task, TextTask)
        network = task.model(observation.sent, device=job.device)
        guess = self._read(AttackedModel.of(observation, task, network), rng, job)
        if not guess.proven and "in_span" in (guess.confidence or ()):
            said = shift_note(observation, task, guess.guess.to("cpu"))
            guess = replace(guess, note="; ".join(filter(None, (guess.note, said))))
        return recovered(guess, observation, network) if self.adaptive else guess

    def objectives(
        self,
        observation: Observation,
        task: Task,
        batches: Sequence[Batch],
        rng: torch.Generator,
        job: Job,
    ) -> list[float] | None:
        """``-log p(texts | update)``, see ``BatchLikelihood``; of a single round.

        Searches sum what single layers say of words, or parts of this; it decides between texts.
        """
        del rng
        assert isinstance(task, TextTask)
        if self.over_rounds or self.adaptive:
            return None
        try:
            likelihood = BatchLikelihood.of(observation, task, job)
        except CannotAttack:
            return None
        if likelihood is None:
            return None
        return [likelihood.nats(batch.to(job.device)) for batch in batches]

    def _read(self, model: AttackedModel, rng: torch.Generator, job: Job) -> Reconstruction:
        if self.work is None:
            return self._search(model, rng, job)
        ended = f"its work budget of {self.work:,} tokens ended the search"
        with job.limited(model.network, self.work) as exhausted:
            try:
                guess = self._search(model, rng, job)
            except CannotAttack as error:
                if exhausted():
                    error.reason, error.ended = f"{error.reason}; {ended}", "exhausted"
                raise
            if guess.proven or not exhausted():
                return guess
        note = "; ".join(filter(None, (guess.note, ended)))
        return replace(guess, expired=False, exhausted=True, note=note)

    def _search(self, model: AttackedModel, rng: torch.Generator, job: Job) -> Reconstruction:
        search, exact = ExactSearch(model, rng, job), None
        if model.unspanned and (guess := LikelihoodSearch(model, rng, job).run()):
            return guess
        try:
            exact = search.run()
        except CannotAttack as error:
            refusal = error
            if few := SparseRecovery(model, rng, job).run():
                return few
        if exact is not None and (job.expired or search.tells_half(exact)):
            return exact
        # Where B is not known nothing behind the adapters is; a pursuit needs nothing of it.
        if (
            exact is not None
            and is_personal(model.observation)
            and (few := SparseRecovery(model, rng, job).run())
        ):
            return replace(few, note=f"{first_round(model.observation)}; a sparse pursuit read it")
        if guess := LikelihoodSearch(model, rng, job).run() or exact:
            return guess
        raise refusal from None


def room(space: Subspace) -> int:
    """The largest rank at which tokens can still be distinguished."""
    if isinstance(space, AdapterSpan):
        return space.most - 1
    ranks = range(space.most, 0, -1)
    spans = (Subspace(torch.empty(space.width, rank, device="meta"), space.most) for rank in ranks)
    return next((candidate.rank for candidate in spans if not candidate.full), 0)


def over_rounds(
    observations: Sequence[Observation],
    search: Callable[[Observation, int], Reconstruction],
    task: TextTask,
    job: Job,
) -> list[Reconstruction]:
    """One guess for each of a client's observations, from all rounds up to it with the same rows.

    The sentences are sought in the mean of the updates (``joined``). Of what is found there and in
    the rounds before, the guess is what explains all updates best, each at its own weights. What is
    proven stays.

    Args:
        observations: of one client.
        search: the guess from one observation; takes the position of its last round, too.
        task: defines the loss.
        job: its time budget; when that ends, later rounds keep the last guess.
    """

    def guess(rounds: Sequence[int], before: Reconstruction | None) -> Reconstruction:
        if before is not None and before.certified:
            return before
        seen = [observations[position] for position in rounds]
        new = search(joined(seen), rounds[-1])
        if before is None or job.expired or new.certified:
            return new
        both = [
            explained(seen, task, reconstruction.guess, job) for reconstruction in (before, new)
        ]
        if both[0] < both[1]:
            return new
        # A search that was cut short might have explained more.
        return replace(before, expired=new.expired, exhausted=new.exhausted)

    return round_by_round(observations, guess, job)


def joined(rounds: Sequence[Observation]) -> Observation:
    """The mean update of several rounds, as one observation at the mean of their weights.

    The mean of gradients is the gradient at the mean weights, up to second order in how far they
    move, while noise drawn anew falls as ``1 / sqrt(rounds)``. This is more than adding up what
    each round says: a direction of the gradient shows in a round only above the noise's edge, and
    rounds of which none shows it would add up to nothing. An entry that pruning left out in some
    rounds is the mean of the others.

    The defense of one round is not that of the mean, which hence has none declared.
    """
    last = rounds[-1]
    if len(rounds) == 1:
        return last
    sent = {
        name: torch.stack([seen.sent[name] for seen in rounds]).mean(0)
        if value.is_floating_point()
        else value
        for name, value in last.sent.items()
    }
    updates = [seen.update() for seen in rounds]
    optimizer = None if last.kind == "gradient" else last.knowledge.optimizer
    received = {}
    for name in updates[-1]:
        mean = _mean([seen[name] for seen in updates], optimizer)
        shown = {"weights": sent[name] - mean, "difference": -mean}
        received[name] = shown.get(last.kind, mean).float()
    knowledge = last.knowledge.model_copy(update={"defense": None})
    return replace(last, sent=sent, received=received, knowledge=knowledge)


def _mean(values: Sequence[Tensor], optimizer: str | None) -> Tensor:
    """Of the entries that were sent; of all where none was."""
    known = torch.stack([read(value, optimizer).sent for value in values])
    known |= ~known.any(0)
    return (torch.stack(list(values)) * known).sum(0) / known.sum(0)


def explained(rounds: Sequence[Observation], task: TextTask, batch: Batch, job: Job) -> float:
    """How well a batch explains all updates: ``sum <Y_t, g_t> / sqrt(sum |g_t|^2)``.

    ``g_t`` is its gradient at the weights of round t. Under white noise this is the root of the
    gain in log-likelihood at the best common scale, in units of the noise. Classes that are not
    known leave nothing to compare, and the result is minus infinity.
    """
    if task.spec.num_classes and bool((batch.labels < 0).any()):
        return -torch.inf
    both = square = 0.0
    for seen in rounds:
        network = task.model(seen.sent, device=job.device)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in seen.received)
        gradient = task.gradient(network, batch.to(job.device))
        update = seen.update(gradient)
        both += _inner(gradient, update)
        square += _inner(gradient, gradient)
    return both / square**0.5 if square else -torch.inf


def _inner(a: Tensors, b: Tensors) -> float:
    return sum(float((a[k].cpu().double() * b[k].cpu().double()).sum()) for k in a)
