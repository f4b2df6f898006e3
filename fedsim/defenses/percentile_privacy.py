"""NVFlare's filters: PercentilePrivacy cuts both ends, SVTPrivacy draws noisy coordinates."""

import dataclasses
import math
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.accountant import Schedule
from fedsim.defenses.base import Defense, DefenseFamily, Distortion, Repeatable
from fedsim.defenses.encoding import Encoding
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


@dataclass(frozen=True, kw_only=True)
class SvtPrivacy(Defense):
    """The filter of that name in NVFlare, by the sparse vector technique, with its defaults.

    The technique is that of Lyu, Su and Li 2017 ("Understanding the sparse vector technique").

    Let d be the update divided by the round's local steps and truncated to [-gamma, gamma], and n
    the share ``fraction`` of its m coordinates. With Lap(b) Laplace noise of scale b,

        threshold = tau + Lap(gamma / e1),  e1 = epsilon / (1 + (2 n)^(2/3)),
        coordinate i is accepted if |d_i| + Lap(2 gamma n / (epsilon - e1)) >= threshold,

    asked again of those not yet accepted until n are. Of the accepted, n are drawn, by default with
    replacement, and sent as ``d_i + Lap(2 gamma / noise_var)``; all others are 0.

    Unless gamma n / epsilon is below the size of a coordinate, the choice is all but random; with
    the defaults the noise on what is sent is also twenty times the largest value that it covers.
    NVFlare counts epsilon by message and coordinate; none is claimed here for a client.

    The surrogate is the truncation.

    Attributes:
        fraction: share of the coordinates that is sent, at most.
        epsilon: budget of the choice of coordinates.
        noise_var: budget of each value that is sent.
        gamma: largest magnitude of a coordinate and local step.
        tau: threshold before its noise.
        replace: whether coordinates are drawn with replacement, so that some are drawn twice and
            fewer are sent.
        steps: local steps by which the update is divided first; None for those of a round.
    """

    family: ClassVar[DefenseFamily] = "deployed"
    run_by: ClassVar[str] = "the client; a filter of NVFlare"
    known: ClassVar[str] = "The zeros, the truncation and that there is noise."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sparsity", "noise", "truncation"})
    tuned_by: ClassVar[Strength] = Strength("fraction", 0.5, 1e-4)

    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    noise_var: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    tau: Annotated[float, Field(allow_inf_nan=False)] = 1e-6
    replace: bool = True
    steps: Annotated[int, Field(ge=1)] | None = None

    def fit(self, schedule: Schedule) -> Self:
        """The same filter, for the local steps of a round of this schedule."""
        return self if self.steps else dataclasses.replace(self, steps=round_steps(schedule))

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The chosen coordinates with noise, drawn where ``rng`` lives, in the model's order."""
        steps = self.steps or 1
        parts = {name: value for name, value in self.surrogate(update).items() if filterable(value)}
        flat = torch.cat([value.flatten() for value in parts.values()]).to(rng.device) / steps
        count = math.ceil(self.fraction * flat.numel())
        accepted = self._accepted(flat, count, rng).nonzero().squeeze(1)
        if self.replace:
            drawn = torch.randint(len(accepted), (count,), generator=rng, device=rng.device)
        else:
            drawn = torch.randperm(len(accepted), generator=rng, device=rng.device)[:count]
        chosen = accepted[drawn]
        noisy = flat[chosen] + laplace(chosen.shape, 2 * self.gamma / self.noise_var, rng)
        sent = torch.zeros_like(flat)
        sent[chosen] = noisy.to(flat.dtype)
        pieces = (sent * steps).split([value.numel() for value in parts.values()])
        return update | {
            name: piece.view_as(value).to(value)
            for (name, value), piece in zip(parts.items(), pieces, strict=True)
        }

    def _accepted(self, values: Tensor, count: int, rng: torch.Generator) -> Tensor:
        """Mask ``(coordinate,)`` of at least ``count`` that exceeded the noisy threshold."""
        first = self.epsilon / (1 + (2 * count) ** (2 / 3))
        threshold = self.tau + laplace((), self.gamma / first, rng)
        scale = 2 * self.gamma * count / (self.epsilon - first)
        accepted = torch.zeros_like(values, dtype=torch.bool)
        while int(accepted.sum()) < count:
            accepted |= values.abs() + laplace(values.shape, scale, rng) >= threshold
        return accepted

    def surrogate(self, update: Tensors) -> Tensors:
        """The truncation, for all steps."""
        largest = self.gamma * (self.steps or 1)
        return {
            name: value.clamp(-largest, largest) if filterable(value) else value
            for name, value in update.items()
        }

    def encode(self, packed: Encoding) -> Encoding:
        """Zeros are left out; the others, full of noise, come with indices."""
        del packed
        return Encoding(sparse=True)


def laplace(shape: torch.Size | tuple[int, ...], scale: float, rng: torch.Generator) -> Tensor:
    """Laplace noise of mean 0: the difference of two exponential variables."""
    first, second = (
        torch.empty(shape, device=rng.device).exponential_(generator=rng) for _ in range(2)
    )
    return scale * (first - second)
