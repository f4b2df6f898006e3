"""Passive membership inference: which of given rows are behind an update."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Grouping, Inferred, Job, Reconstruction
from attacks.membership.layer_inputs import residuals
from attacks.observed.readings import FULL_SHARE, read
from attacks.observed.replay import Replay, is_multiple, observed_gradient, replay
from attacks.observed.same_rows import same_rows
from attacks.observed.separated import by_updates, is_sum
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

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
            return [known.likelihoods(update) for update in seen]
        if not all(map(is_multiple, seen)):
            known = known.signs()
        updates = torch.stack([known.pick(known.seen(update)) for update in seen])
        norms = updates.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return list(known.products(updates) / norms)

    def _of_members(self, seen: Sequence[Observation], task: Task, rows: Batch) -> list[Tensor]:
        """Of each cohort by its members, where all are told apart by its round, else of the sum."""
        scores: dict[int, Tensor] = {}
        for number in sorted({reply.key.round for reply in seen}):
            here = [i for i, reply in enumerate(seen) if reply.key.round == number]
            known = [reply for reply in seen if reply.key.round <= number and is_sum(reply)]
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
        for number in sorted({reply.key.round for reply in seen}):
            here = [i for i, reply in enumerate(seen) if reply.key.round == number]
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


_COORDINATES = 80_000
"""Most coordinates on which gradients are compared; more exceed the memory."""
_PILOT = 16
"""Candidates whose mean gradient chooses the coordinates."""
_RIDGES = tuple(10.0**power for power in range(-7, 3))
"""Ridges of the regression on all candidates, as shares of the mean squared norm."""
_last: dict[str, CandidateGradients] = {}
"""The last set of candidates by its key: round 1 broadcasts the same under every defense."""


@dataclass(frozen=True)
class Regression:
    """Ridge regression of updates on gradients ``(candidate, coordinate)``.

    Attributes:
        values: eigenvalues of the Gram matrix, float64.
        vectors: its eigenvectors, in columns.
    """

    gradients: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def on(cls, gradients: Tensor) -> Regression:
        """Decompose the Gram matrix."""
        values, vectors = torch.linalg.eigh((gradients @ gradients.T).double())
        return cls(gradients, values.clamp(min=0), vectors)

    def t_values(self, update: Tensor) -> Tensor:
        """Of each gradient, given one update ``(coordinate,)``; float64 ``(candidate,)``.

        The ridge is the most likely one (empirical Bayes): with the eigenvalues ``s``, projections
        ``p`` of the inner products on the eigenvectors, and ``n`` coordinates, it minimises
        ``n log(|u|^2 - sum p^2 / (s + r)) + sum log(1 + s / r)``.
        """
        projected = self.vectors.T @ (self.gradients @ update).double()
        ridges = self.values.mean() * torch.tensor(_RIDGES).to(self.values)
        gained = (projected.square() / (self.values + ridges[:, None])).sum(1)
        whole = update.double().square().sum()
        rest = (whole - gained).clamp(min=1e-12 * float(whole))
        unlikely = len(update) * rest.log() + (self.values / ridges[:, None]).log1p().sum(1)
        inverse = 1 / (self.values + ridges[unlikely.argmin()])
        weights = self.vectors @ (inverse * projected)
        t_value: Tensor = weights / (self.vectors.square() @ inverse).sqrt()
        return t_value


@dataclass(frozen=True)
class CandidateGradients:
    """The gradient of each candidate at the broadcast weights.

    Compared are the coordinates with the largest squares, which under white noise say most, and as
    many random ones, which say most of signs. Tables of embeddings, of which a row uses little, are
    left out where other tensors have coordinates enough, and not even computed.

    Attributes:
        model: broadcast, with the compared tensors alone for parameters.
        chosen: the compared of their coordinates, one tensor after another, ``(coordinate,)``.
        gradients: ``(candidate, coordinate)``.
    """

    model: Replay
    chosen: Tensor
    gradients: Tensor

    @classmethod
    def of(cls, model: Replay, rows: Batch) -> CandidateGradients:
        """The gradients of all rows; those of the last call if weights and rows are the same."""
        pilot = model.gradient(rows[:: -(-len(rows) // _PILOT)])
        energy = {name: value.detach().square() for name, value in pilot.items()}
        names = [k for k, v in energy.items() if 2 * int(v.count_nonzero()) > v.numel()]
        if sum(energy[name].numel() for name in names) < _COORDINATES:
            names = list(energy)
        few = replace(model, parameters={name: model.parameters[name] for name in names})
        key = _key(few, rows)
        if key not in _last:
            _last.clear()
            _last[key] = cls._computed(few, rows, {name: energy[name] for name in names})
        return _last[key]

    @classmethod
    def _computed(cls, few: Replay, rows: Batch, energy: Tensors) -> CandidateGradients:
        whole = torch.cat([value.flatten() for value in energy.values()])
        size = min(_COORDINATES, len(whole))
        whole[:: max(1, 2 * len(whole) // size)] = torch.inf
        compared = cls(few, whole.topk(size).indices.sort().values, whole[:0])
        each = [compared.pick(few.gradient(rows[i])) for i in range(len(rows))]
        return replace(compared, gradients=torch.stack(each))

    def pick(self, gradient: Tensors) -> Tensor:
        """The compared coordinates of a gradient, float32."""
        parts = [gradient[k].detach().flatten().to(p) for k, p in self.model.parameters.items()]
        return torch.cat(parts)[self.chosen]

    def seen(self, observation: Observation) -> Tensors:
        """The observed mean gradient of the compared tensors; the update where Adam made it."""
        received = {name: observation.received[name] for name in self.model.parameters}
        part = replace(observation, received=received)
        return observed_gradient(part) if is_multiple(part) else part.update()

    def signs(self) -> CandidateGradients:
        """The first step that Adam takes by each candidate alone, but for its length."""
        return replace(self, gradients=self.gradients.sign())

    def likelihoods(self, observation: Observation) -> Tensor:
        """T-values ``(candidate,)`` with one update.

        Entries that pruning left out are left out of the regression. Of signs, and of what Adam
        divided by the size of the gradient, each coordinate says how large a share of its sum a
        candidate is, so that gradients are divided by their root mean square there.
        """
        update = self.seen(observation)
        values = self.pick(update)
        divided = not is_multiple(observation)
        if divided or all(read(value).signs for value in update.values() if value.any()):
            return self._shares.t_values(values)
        alive, sent = (self.gradients != 0).float().mean(0) > 0.5, values != 0
        if float(sent[alive].float().mean()) < FULL_SHARE:
            return Regression.on(self.gradients[:, sent]).t_values(values[sent])
        return self._whole.t_values(values)

    def products(self, updates: Tensor) -> Tensor:
        """Inner products with updates ``(update, coordinate)`` over the candidates' norms.

        Returns:
            Float64 ``(update, candidate)``.
        """
        norms = self.gradients.norm(dim=1).clamp(min=1e-30)
        inner: Tensor = (updates @ self.gradients.T / norms).double()
        return inner

    @cached_property
    def _whole(self) -> Regression:
        return Regression.on(self.gradients)

    @cached_property
    def _shares(self) -> Regression:
        sizes = self.gradients.square().mean(0).sqrt()
        return Regression.on(self.gradients / sizes.clamp(min=1e-6 * float(sizes.max())))


def _key(model: Replay, rows: Batch) -> str:
    """Hash of the weights, the compared parameters and the rows."""
    digest = hashlib.sha256(repr((model.task.spec, list(model.parameters))).encode())
    weights = model.network.state_dict()
    for value in (*weights.values(), rows.inputs, rows.labels):
        digest.update(f"{value.device} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
