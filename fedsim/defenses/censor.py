"""CENSOR: a random direction that is orthogonal to the gradient is sent instead of it."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import Defense, DefenseFamily, Distortion, Step
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Censor(Defense):
    """Sends the best of some directions orthogonal to the gradient (Zhang et al. 2025, "CENSOR").

    For each tensor g of a step's gradient, and r drawn uniformly from the unit sphere, a trial is

        n = |g| t / |t|,  t = r - (r . g / |g|^2) g.

    Of ``trials``, the one with the lowest loss at ``weights - rate * n`` is sent; and if none has a
    lower loss than the weights themselves, the true gradient is, as in the authors' code. To first
    order no trial changes the loss, so that where it is convex the true gradient wins.

    ``projection = "authors"`` subtracts ``(r . g / |g|) g`` as that code does, which is orthogonal
    only if ``|g| = 1``: a longer gradient leaves its opposite in t, a shorter one a part of itself,
    and the choice of the lowest loss prefers the latter. The authors stop defending after ten
    epochs; here every step is defended.

    An adaptive attacker knows the length of each tensor and its angle to what was sent, and looks
    whether it is the true gradient.

    Attributes:
        trials: number of directions that are tried.
        rate: step size at which losses are compared.
        projection: ``exact``, or that of the authors' code.
    """

    title: ClassVar[str] = "CENSOR"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = (
        "Lengths, a right angle to what was sent, and whether that is the true gradient."
    )
    claim: ClassVar[str] = "withstands five attacks, keeps utility"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"orthogonal"})

    trials: Annotated[int, Field(ge=1)] = 20
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    projection: Literal["exact", "authors"] = "exact"

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """The best trial, or the gradient; drawn where ``rng`` lives, in the model's order."""
        held = {name: value.detach().clone() for name, value in step.model.named_parameters()}
        places = dict(step.model.named_parameters())
        best = gradient
        with torch.no_grad():
            lowest = step.loss(step.model, step.batch)
            for _ in range(self.trials):
                trial = {name: self._trial(value, rng) for name, value in gradient.items()}
                for name, value in trial.items():
                    places[name].copy_(held[name] - self.rate * value)
                loss = step.loss(step.model, step.batch)
                if loss < lowest:
                    lowest, best = loss, trial
            for name in gradient:
                places[name].copy_(held[name])
        return best

    def _trial(self, value: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.randn(value.shape, generator=rng, device=rng.device).to(value)
        drawn, length = drawn / drawn.norm(), value.norm()
        power = 2 if self.projection == "exact" else 1
        part = (drawn * value).sum() / length**power if length > 0 else length
        trial = drawn - part * value
        # Of a single number nothing is orthogonal to it.
        return length * trial / trial.norm() if value.numel() > 1 else torch.zeros_like(value)
