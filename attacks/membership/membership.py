"""Passive membership inference: which of given rows are behind an update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Grouping, Inferred, Job, Reconstruction
from attacks.membership.gradients import CandidateGradients
from attacks.membership.layer_inputs import residuals
from attacks.observed.declared import declared, update_of
from attacks.observed.replay import Replay, is_multiple, replay, step_length
from attacks.observed.same_rows import same_rows
from attacks.observed.separated import by_updates, is_sum
from fedsim.capture import Observation
from fedsim.defenses.base import Step
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack, ConfigError
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_STEP = 0.1
"""Step of ``loss_change`` where the learning rate is not known."""
Statistic = Literal[
    "likelihood",
    "gain",
    "cosine",
    "shadow",
    "others",
    "residual",
    "loss",
    "loss_change",
    "loss_drop",
]


@dataclass(frozen=True)
class Membership(Attack):
    """Score each candidate row by how likely it was used for an update.

    With the update ``u``, a mean of B gradients, and the candidate's gradient ``g`` at the
    broadcast weights, the score is by ``statistic``

    - ``likelihood``: the Gaussian log-likelihood ratio of ``u`` with and without the row, all
      other candidates being free to contribute: the t-value of ``g`` in a ridge regression of
      ``u`` on the gradients of all candidates, some of which are not used;
    - ``gain``: the same for the row alone, ``(|u|^2 - |u - g / B|^2) / 2``;
    - ``cosine``: of ``u`` and ``g``, as in Li et al. 2023 ("Effective passive membership inference
      attacks in federated learning");
    - ``shadow``: how far that cosine, times ``|u|``, lies above its mean over the updates of
      ``shadows`` clients with auxiliary rows and the declared defense, in standard deviations (the
      offline LiRA of Carlini et al. 2022, with shadow clients for shadow models);
    - ``others``: how far that cosine lies above its mean over the updates of the other clients of
      the round, which did not use the row, in standard deviations: the one-tailed test of FedMIA
      (Zhu et al. 2025, arXiv 2402.06289), which sums it ``over_rounds``;
    - ``residual``: how near the inputs of the first linear layers lie to the span of their
      gradients (ProjRes, arXiv 2604.21197); where tokens or noise fill the space, how little of
      the gradient makes them;
    - ``loss``: minus the loss, without the update (Yeom et al. 2018): what the weights say;
    - ``loss_change``: the loss less the loss after a step along the update;
    - ``loss_drop``: the loss at the client's round before less that at this one, 0 in its first:
      what the training between them says of rows that are used in each round.

    Adam and its kin send no multiple of a gradient. There ``likelihood`` divides gradients by their
    root mean square, and ``cosine`` and ``others`` compare the update with the candidate's own
    first step of Adam, the sign of ``g``. ``gain`` and ``shadow`` refuse.

    Attributes:
        over_rounds: sum the standardised scores of all rounds so far with the same rows.
        separated: of sums over clients whom the sums of all rounds so far tell apart, see
            ``attacks.observed.separated.by_updates``: the largest of their scores.
        shadows: number of shadow clients.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image", "text"})
    grouping: ClassVar[Grouping] = "same_weights"
    infers: ClassVar[Inferred] = "membership"

    statistic: Statistic = "likelihood"
    over_rounds: bool = False
    separated: bool = False
    shadows: int = 16

    def __post_init__(self) -> None:
        """Check the options."""
        if self.shadows < 2:
            raise ValueError("shadows: a spread takes 2. Ask for more.")
        if self.separated and (self.over_rounds or self.statistic in ("others", "loss_drop")):
            raise ValueError("separated: uses all rounds already. Choose another statistic.")

    @property
    def grouped_by(self) -> Grouping:
        """One client's rounds where a score needs several of them, or all clients' rounds."""
        if self.statistic == "others" or self.separated:
            return "whole_run"
        several = self.over_rounds or self.statistic == "loss_drop"
        return "same_client" if several else self.grouping

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The scores of all candidates for each update; their gradients are computed once."""
        rows = job.candidates().to(job.device)
        if self.statistic == "loss_drop":
            scores = _drops(observations, task, rows, job.device)
        elif self.statistic == "others":
            scores = self._beside_others(observations, task, rngs, job, rows)
        elif self.separated:
            scores = self._of_members(observations, task, rngs, job, rows)
        elif self.grouped_by == "same_client":
            pairs = zip(observations, rngs, strict=True)
            scores = [self._scores([seen], task, [rng], job, rows)[0] for seen, rng in pairs]
        else:
            scores = self._scores(observations, task, rngs, job, rows)
        if self.over_rounds:
            scores = summed(observations, scores)
        empty = rows[:0].to("cpu")
        return [Reconstruction(empty, scores=score.double().cpu()) for score in scores]

    def _scores(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        rows: Batch,
    ) -> list[Tensor]:
        """For each update ``(candidate,)``; all updates are of the same weights."""
        model = replay(observations[0], task, job.device)
        if self.statistic == "residual":
            return residuals(model.network, task, observations, rows)
        if self.statistic == "loss":
            return [-_losses(model, model.parameters, rows)] * len(observations)
        if self.statistic == "loss_change":
            before = _losses(model, model.parameters, rows)
            return [before - _losses(model, _moved(model, seen), rows) for seen in observations]
        known = CandidateGradients.of(model, rows)
        if self.statistic == "likelihood":
            return [known.likelihoods(seen) for seen in observations]
        if not all(map(is_multiple, observations)):
            if self.statistic not in ("cosine", "others"):
                raise CannotAttack(
                    f"{self.statistic!r} needs a multiple of a gradient, which the client's "
                    "optimizer does not send",
                    "Choose 'likelihood', 'cosine' or 'others'.",
                )
            known = known.signs()
        updates = torch.stack([known.pick(known.seen(seen)) for seen in observations])
        if self.statistic == "shadow":
            triples = zip(observations, updates, rngs, strict=True)
            return [self._above_shadows(model, known, *each, job) for each in triples]
        products = known.products(updates)
        if self.statistic == "cosine":
            return list(products / updates.norm(dim=1, keepdim=True).clamp(min=1e-30))
        counts = [seen.knowledge.num_examples or 1 for seen in observations]
        share = known.gradients.norm(dim=1).double() / torch.tensor(counts).to(products)[:, None]
        return list(share * products - share.square() / 2)

    def _of_members(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        rows: Batch,
    ) -> list[Tensor]:
        """Of each cohort by its members, where all are told apart by its round, else of the sum."""
        scores: dict[int, Tensor] = {}
        for number in sorted({seen.key.round for seen in observations}):
            here = [i for i, seen in enumerate(observations) if seen.key.round == number]
            known = [seen for seen in observations if seen.key.round <= number and is_sum(seen)]
            single = by_updates(known) if known else {}
            clients = [rngs[here[0]]] * len(single)
            of_singles = (
                self._scores([*single.values()], task, clients, job, rows) if single else []
            )
            by_client = dict(zip(single, of_singles, strict=True))
            sums = self._scores(
                [observations[i] for i in here], task, [rngs[i] for i in here], job, rows
            )
            for i, whole in zip(here, sums, strict=True):
                members = observations[i].knowledge.members
                apart = bool(members) and by_client.keys() >= set(members)
                scores[i] = torch.stack([by_client[c] for c in members]).amax(0) if apart else whole
        return [scores[i] for i in range(len(observations))]

    def _beside_others(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        rows: Batch,
    ) -> list[Tensor]:
        """Of each round by itself.

        Raises:
            CannotAttack: a round has fewer than three replies.
        """
        scores: dict[int, Tensor] = {}
        for number in sorted({seen.key.round for seen in observations}):
            here = [i for i, seen in enumerate(observations) if seen.key.round == number]
            if len(here) < 3:
                raise CannotAttack(
                    f"round {number} has {len(here)} replies, and a spread over others takes 3",
                    "Capture more clients.",
                )
            cosine = replace(self, statistic="cosine", over_rounds=False)
            seen = [observations[i] for i in here]
            cosines = torch.stack(cosine._scores(seen, task, [rngs[i] for i in here], job, rows))
            for place, i in enumerate(here):
                others = torch.cat([cosines[:place], cosines[place + 1 :]])
                spread = others.std(0).clamp(min=1e-30)
                scores[i] = (cosines[place] - others.mean(0)) / spread
        return [scores[i] for i in range(len(observations))]

    def _above_shadows(
        self,
        model: Replay,
        known: CandidateGradients,
        seen: Observation,
        update: Tensor,
        rng: torch.Generator,
        job: Job,
    ) -> Tensor:
        shadows = shadow_updates(model, seen, job.auxiliary(), self.shadows, rng)
        inner = known.products(torch.stack([*map(known.pick, shadows), update]))
        out, score = inner[:-1], inner[-1]
        deviation: Tensor = (score - out.mean(0)) / out.std(0).clamp(min=1e-30)
        return deviation


def summed(observations: Sequence[Observation], scores: Sequence[Tensor]) -> list[Tensor]:
    """Sum of the standardised scores of each round and those before it with the same rows."""
    sums = list(scores)
    for group in same_rows(observations):
        total = torch.zeros_like(scores[group[0]])
        for position in group:
            score = scores[position]
            total = total + (score - score.mean()) / score.std().clamp(min=1e-30)
            sums[position] = total
    return sums


def _drops(
    observations: Sequence[Observation], task: Task, rows: Batch, device: torch.device
) -> list[Tensor]:
    """By round, however the observations are ordered."""
    order = sorted(range(len(observations)), key=lambda i: observations[i].key)
    drops, before = {}, None
    for position in order:
        model = replay(observations[position], task, device)
        losses = _losses(model, model.parameters, rows)
        drops[position] = torch.zeros_like(losses) if before is None else before - losses
        before = losses
    return [drops[position] for position in range(len(observations))]


def _moved(model: Replay, seen: Observation) -> Tensors:
    """The parameters after a step along the update."""
    step = (seen.knowledge.learning_rate or _STEP) if seen.kind == "gradient" else 1.0
    update = seen.update(model.parameters)
    return {k: p - step * update[k].to(p) for k, p in model.parameters.items()}


def _losses(model: Replay, parameters: Tensors, rows: Batch) -> Tensor:
    with torch.no_grad():
        losses = [
            model.task.functional_loss(model.network, parameters, rows[i]) for i in range(len(rows))
        ]
    return torch.stack(losses)


def shadow_updates(
    model: Replay, seen: Observation, auxiliary: Batch, count: int, rng: torch.Generator
) -> Iterator[Tensors]:
    """Mean gradients of clients that draw as many auxiliary rows as the client used.

    Without a declared defense the shadows have none.

    Raises:
        CannotAttack: there are too few rows for two different batches, or the declared defense
            fits its noise to facts that the server does not know.
    """
    size = seen.knowledge.num_examples or 1
    if len(auxiliary) <= size:
        raise CannotAttack(
            f"shadow clients need more than {size} auxiliary rows, and there are {len(auxiliary)}",
            "Raise auxiliary.rows.",
        )
    chain = Chain() if seen.knowledge.defense is None else declared(seen)
    for _ in range(count):
        rows = auxiliary[torch.randperm(len(auxiliary), generator=rng)[:size]].to(_device(model))
        try:
            yield _sent(model, chain, rows, step_length(seen), rng)
        except ConfigError as error:
            raise CannotAttack(
                f"the noise of the declared defense is not known ({error})",
                "Declare noise_multiplier instead of epsilon, or choose another statistic.",
            ) from None


def _sent(model: Replay, chain: Chain, rows: Batch, length: float, rng: torch.Generator) -> Tensors:
    rows = chain.on_batch(rows, model.network, rng)
    if chain.per_example:
        mean = chain.mean((_gradient(model, rows[i]) for i in range(len(rows))), rng)
    else:
        mean = _gradient(model, rows)
    mean = chain.on_step(mean, Step(model.network, rows, model.task.loss), rng)
    return update_of(chain, mean, length, rng)


def _gradient(model: Replay, rows: Batch) -> Tensors:
    return {name: value.detach() for name, value in model.gradient(rows).items()}


def _device(model: Replay) -> torch.device:
    return next(iter(model.parameters.values())).device
