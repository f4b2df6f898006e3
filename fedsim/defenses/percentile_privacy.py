"""NVFlare's PercentilePrivacy: small coordinates are left out and large ones truncated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.accountant import Schedule
from fedsim.defenses.base import DefenseFamily, Distortion, Repeatable
from fedsim.defenses.strength import Strength
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class PercentilePrivacy(Repeatable):
    """The filter of that name in NVFlare (Shokri and Shmatikov 2015), with its defaults.

    With d the update divided by the round's local steps and c the ``percentile`` of ``|d|`` over
    all coordinates, the client sends, again for all steps,

        0 where |d| < c, else d truncated to [-gamma, gamma].

    Nothing is random and there is no epsilon. By default a tenth of the coordinates, the smallest,
    is left out; what remains keeps its signs, and its values up to gamma. The filter was made for
    differences of weights, which a learning rate makes small; gradients of FedSGD often exceed
    gamma, so that little more than their signs remains.

    The surrogate is the filter itself, with a cutoff that is constant under differentiation.

    Attributes:
        percentile: coordinates below this percentile of the magnitudes are left out; 0 to 100.
        gamma: largest magnitude of a coordinate and local step.
        steps: local steps by which the update is divided first; None for those of a round. NVFlare
            takes the number that the client reports, and 1 if it reports none.
    """

    family: ClassVar[DefenseFamily] = "deployed"
    run_by: ClassVar[str] = "the client; a filter of NVFlare"
    known: ClassVar[str] = "The filter itself, as a differentiable function."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sparsity", "truncation"})
    tuned_by: ClassVar[Strength] = Strength("percentile", 10.0, 99.99, "rest", end=100.0)

    percentile: Annotated[float, Field(ge=0, le=100)] = 10.0
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    steps: Annotated[int, Field(ge=1)] | None = None

    def fit(self, schedule: Schedule) -> Self:
        """The same filter, for the local steps of a round of this schedule."""
        return self if self.steps else replace(self, steps=round_steps(schedule))

    def surrogate(self, update: Tensors) -> Tensors:
        """The filter; truncated coordinates and those left out have no slope."""
        steps = self.steps or 1
        floating = [value.detach() for value in update.values() if value.is_floating_point()]
        magnitudes = torch.cat([value.flatten() for value in floating]).abs() / steps
        cutoff = percentile(magnitudes, self.percentile)
        return {
            name: self._filtered(value / steps, cutoff) * steps if filterable(value) else value
            for name, value in update.items()
        }

    def _filtered(self, value: Tensor, cutoff: Tensor) -> Tensor:
        return value.where(value.detach().abs() >= cutoff, 0).clamp(-self.gamma, self.gamma)


def filterable(value: Tensor) -> bool:
    """Whether NVFlare's filters change a tensor: floating-point, and no single number."""
    return value.is_floating_point() and value.dim() > 0


def round_steps(schedule: Schedule) -> int:
    """Local steps of a round of this schedule, at least one."""
    return max(1, schedule.steps // max(1, schedule.rounds))


def percentile(values: Tensor, rank: float) -> Tensor:
    """Percentile of ``values (coordinate,)``, interpolated linearly as NumPy does; a scalar."""
    place = rank / 100 * (values.numel() - 1)
    below = math.floor(place)
    # Not torch.quantile, which refuses more than 16 million elements.
    low, high = (values.kthvalue(min(k, values.numel() - 1) + 1).values for k in (below, below + 1))
    return low + (high - low) * (place - below)
