"""Passive membership inference: which of given rows are behind an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.membership.layer_inputs import residuals
from attacks.observed.replay import Replay, observed_gradient, replay
from fedsim.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_COORDINATES = 200_000
"""Coordinates of each gradient that are compared with other candidates; more exceed the memory."""
_RIDGE = 1e-3
"""Ridge of the regression on all candidates, as a share of the mean squared norm."""
_STEP = 0.1
"""Step of ``loss_change`` where the learning rate is not known."""


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
    - ``residual``: minus the mean sine of the angle between the inputs of the first linear layers
      and the span of their gradients (ProjRes, arXiv 2604.21197). It is exact as long as a batch
      has fewer tokens than a layer is wide, and says nothing from then on or under noise;
    - ``loss``: minus the loss, without the update (Yeom et al. 2018): what the weights say;
    - ``loss_change``: the loss less the loss after a step along the update.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image", "text"})
    grouping: ClassVar[Grouping] = "same_weights"
    infers: ClassVar[Literal["rows", "membership"]] = "membership"

    statistic: Literal["likelihood", "gain", "cosine", "residual", "loss", "loss_change"] = (
        "likelihood"
    )

    def abridged(self) -> tuple[Attack, float]:
        """The whole attack, which takes no steps."""
        return self, 0.0

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The scores of all candidates for each update; their gradients are computed once."""
        del rngs
        rows = job.candidates().to(job.device)
        own = replay(observations[0], task, job.device)
        scores: Sequence[Tensor]
        if self.statistic == "residual":
            scores = residuals(own.network, task, observations, rows)
        elif self.statistic.startswith("loss"):
            scores = [self._losses(own, seen, rows) for seen in observations]
        else:
            scores = self._gradients(own, observations, rows)
        empty = rows[:0].to("cpu")
        return [Reconstruction(empty, scores=one.double().cpu()) for one in scores]

    def _losses(self, own: Replay, seen: Observation, rows: Batch) -> Tensor:
        before = _losses(own, own.parameters, rows)
        if self.statistic == "loss":
            return -before
        step = (seen.knowledge.learning_rate or _STEP) if seen.kind == "gradient" else 1.0
        update = seen.update(own.parameters)
        moved = {k: p - step * update[k].to(p) for k, p in own.parameters.items()}
        return before - _losses(own, moved, rows)

    def _gradients(
        self, own: Replay, observations: Sequence[Observation], rows: Batch
    ) -> list[Tensor]:
        updates = torch.stack([_flat(own, observed_gradient(seen)) for seen in observations])
        stride = -(-updates.shape[1] // _COORDINATES)
        products, norms, kept = [], [], []
        for i in range(len(rows)):
            found = _flat(own, {k: v.detach() for k, v in own.gradient(rows[i]).items()})
            products.append(updates @ found)
            norms.append(found.norm())
            kept.append(found[::stride])
        inner, norm = torch.stack(products, 1).double(), torch.stack(norms).double()
        if self.statistic == "cosine":
            return list(inner / (norm * updates.norm(dim=1, keepdim=True)).clamp(min=1e-30))
        if self.statistic == "gain":
            counts = [seen.knowledge.num_examples or 1 for seen in observations]
            share = 1 / torch.tensor(counts, dtype=torch.float64, device=inner.device)[:, None]
            return list(share * inner - (share * norm).square() / 2)
        gradients = torch.stack(kept)
        return list(t_values(gradients, updates[:, ::stride]))


def t_values(gradients: Tensor, updates: Tensor) -> Tensor:
    """T-value of each gradient in a ridge regression of the updates ``(update, candidate)``.

    Args:
        gradients: ``(candidate, coordinate)``.
        updates: ``(update, coordinate)``.
    """
    gram = (gradients @ gradients.T).double()
    ridge = _RIDGE * gram.diagonal().mean()
    inverse = torch.linalg.inv(gram + ridge * torch.eye(len(gram)).to(gram))
    weights = (updates @ gradients.T).double() @ inverse
    found: Tensor = weights / inverse.diagonal().sqrt()
    return found


def _losses(own: Replay, parameters: Tensors, rows: Batch) -> Tensor:
    with torch.no_grad():
        found = [
            own.task.functional_loss(own.network, parameters, rows[i]) for i in range(len(rows))
        ]
    return torch.stack(found)


def _flat(own: Replay, gradient: Tensors) -> Tensor:
    """Float32 ``(coordinate,)``, in the order of the model."""
    return torch.cat([gradient[name].flatten().to(p) for name, p in own.parameters.items()])
