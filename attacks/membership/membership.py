"""Passive membership inference: which of given rows are behind an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Grouping, Inferred, Job, Reconstruction
from attacks.membership.gradients import CandidateGradients
from attacks.membership.layer_inputs import residuals
from attacks.observed.replay import is_multiple, replay
from attacks.observed.same_rows import same_rows
from attacks.observed.separated import by_updates, is_sum
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

Statistic = Literal["likelihood", "cosine", "others", "residual"]


@dataclass(frozen=True)
class Membership(Attack):
    """Score each candidate row by how likely it was used for an update.

    With the update ``u``, a mean of B gradients, and the candidate's gradient ``g`` at the
    broadcast weights, the score is by ``statistic``

    - ``likelihood``: the Gaussian log-likelihood ratio of ``u`` with and without the row, all
      other candidates being free to contribute: the t-value of ``g`` in a ridge regression of
      ``u`` on the gradients of all candidates, some of which are not used;
    - ``cosine``: of ``u`` and ``g``, as in Li et al. 2023 ("Effective passive membership inference
      attacks in federated learning");
    - ``others``: how far that cosine lies above its mean over the updates of the other clients of
      the round, which did not use the row, in standard deviations: the one-tailed test of FedMIA
      (Zhu et al. 2025, arXiv 2402.06289), which sums it ``over_rounds``;
    - ``residual``: how near the inputs of the first linear layers lie to the span of their
      gradients (ProjRes, arXiv 2604.21197); where tokens or noise fill the space, how little of
      the gradient makes them.

    Adam and its kin send no multiple of a gradient. There ``likelihood`` divides gradients by their
    root mean square, and ``cosine`` and ``others`` compare the update with the candidate's own
    first step of Adam, the sign of ``g``.

    Attributes:
        over_rounds: sum the standardised scores of all rounds so far with the same rows.
        separated: of sums over clients whom the sums of all rounds so far tell apart, see
            ``attacks.observed.separated.by_updates``: the largest of their scores.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image", "text"})
    grouping: ClassVar[Grouping] = "same_weights"
    infers: ClassVar[Inferred] = "membership"

    statistic: Statistic = "likelihood"
    over_rounds: bool = False
    separated: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        if self.separated and (self.over_rounds or self.statistic == "others"):
            raise ValueError("separated: uses all rounds already. Choose another statistic.")

    @property
    def grouped_by(self) -> Grouping:
        """One client's rounds where scores are summed over them, or all clients' rounds."""
        if self.statistic == "others" or self.separated:
            return "whole_run"
        return "same_client" if self.over_rounds else self.grouping

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The scores of all candidates for each update; their gradients are computed once."""
        del rngs  # nothing is drawn
        rows = job.candidates().to(job.device)
        if self.statistic == "others":
            scores = self._beside_others(observations, task, rows)
        elif self.separated:
            scores = self._of_members(observations, task, rows)
        elif self.grouped_by == "same_client":
            scores = [self._scores([seen], task, rows)[0] for seen in observations]
        else:
            scores = self._scores(observations, task, rows)
        if self.over_rounds:
            scores = summed(observations, scores)
        empty = rows[:0].to("cpu")
        return [Reconstruction(empty, scores=score.double().cpu()) for score in scores]

    def _scores(self, seen: Sequence[Observation], task: Task, rows: Batch) -> list[Tensor]:
        """For each update ``(candidate,)``; all updates are of the same weights."""
        model = replay(seen[0], task, rows.inputs.device)
        if self.statistic == "residual":
            return residuals(model.network, task, seen, rows)
        known = CandidateGradients.of(model, rows)
        if self.statistic == "likelihood":
            return [known.likelihoods(one) for one in seen]
        if not all(map(is_multiple, seen)):
            known = known.signs()
        updates = torch.stack([known.pick(known.seen(one)) for one in seen])
        norms = updates.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return list(known.products(updates) / norms)

    def _of_members(self, seen: Sequence[Observation], task: Task, rows: Batch) -> list[Tensor]:
        """Of each cohort by its members, where all are told apart by its round, else of the sum."""
        scores: dict[int, Tensor] = {}
        for number in sorted({one.key.round for one in seen}):
            here = [i for i, one in enumerate(seen) if one.key.round == number]
            known = [one for one in seen if one.key.round <= number and is_sum(one)]
            single = by_updates(known) if known else {}
            of_singles = self._scores([*single.values()], task, rows) if single else []
            by_client = dict(zip(single, of_singles, strict=True))
            sums = self._scores([seen[i] for i in here], task, rows)
            for i, whole in zip(here, sums, strict=True):
                members = seen[i].knowledge.members
                apart = bool(members) and by_client.keys() >= set(members)
                scores[i] = torch.stack([by_client[c] for c in members]).amax(0) if apart else whole
        return [scores[i] for i in range(len(seen))]

    def _beside_others(self, seen: Sequence[Observation], task: Task, rows: Batch) -> list[Tensor]:
        """Of each round by itself.

        Raises:
            CannotAttack: a round has fewer than three replies.
        """
        scores: dict[int, Tensor] = {}
        for number in sorted({one.key.round for one in seen}):
            here = [i for i, one in enumerate(seen) if one.key.round == number]
            if len(here) < 3:
                raise CannotAttack(
                    f"round {number} has {len(here)} replies, and a spread over others takes 3",
                    "Capture more clients.",
                )
            cosine = replace(self, statistic="cosine", over_rounds=False)
            cosines = torch.stack(cosine._scores([seen[i] for i in here], task, rows))
            for place, i in enumerate(here):
                others = torch.cat([cosines[:place], cosines[place + 1 :]])
                spread = others.std(0).clamp(min=1e-30)
                scores[i] = (cosines[place] - others.mean(0)) / spread
        return [scores[i] for i in range(len(seen))]


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
