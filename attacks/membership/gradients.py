"""Gradients of the candidates beside updates, on the coordinates that say most."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.observed.readings import FULL_SHARE, read
from attacks.observed.replay import Replay, is_multiple, observed_gradient
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

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
