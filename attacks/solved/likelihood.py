"""How well a gradient explains an update that noise, rounding, pruning or signs distorted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.distortion import Distortion
from attacks.solved.cuts import CUTS


@dataclass(frozen=True)
class Likelihood:
    """``-2 log p(update | gradient)`` up to a constant, with its slope and curvature.

    A coordinate that was received with noise of variance ``v`` costs ``(y - g)^2 / v``. One that
    pruning zeroed was no larger than the smallest that was kept, ``t``, and costs
    ``max(|g| - t, 0)^2 / (share t)^2``. A sign costs ``-2 beta log Phi(s g / tau)``, with beta
    below 1 since what the searched coefficients leave out is wrong in many coordinates at once.

    Attributes:
        update: as received.
        variance: of each coordinate, ``(coordinate,)``: its noise, and what the coefficients that
            are not searched for add to it.
        guarded: whether zeros tell that coordinates are small; not so where pruning was random.
    """

    update: Distortion
    variance: Tensor
    guarded: bool = True

    def __call__(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cost, half its descent direction and half its curvature, in each coordinate."""
        if self.update.signs:
            return self._signs(gradient)
        rest = self.update.values - gradient
        cost, slope, curvature = rest.square() / self.variance, rest / self.variance, self.variance
        curvature = 1 / curvature
        if not self.update.pruned:
            return cost, slope, curvature
        bound = self.update.bound
        weight = float(self.guarded) / (CUTS.pruned_softness * bound).square()
        above = (gradient.abs() - bound).clamp(min=0) * gradient.sign()
        sent = self.update.sent
        return (
            torch.where(sent, cost, weight * above.square()),
            torch.where(sent, slope, -weight * above),
            torch.where(sent, curvature, weight * (above != 0)),
        )

    def misfit(self, gradient: Tensor) -> float:
        """Mean cost of a coordinate that was received with noise, 1 where the noise explains it."""
        return 0.0 if self.update.signs else float(self(gradient)[0][self.update.sent].mean())

    def _signs(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        signs, beta = self.update.values.sign(), CUTS.sign_weight * self.update.sent
        width = self.variance.sqrt()
        at = signs * gradient / width
        chance = torch.special.log_ndtr(at)
        ratio = torch.exp(-at.square() / 2 - math.log(2 * math.pi) / 2 - chance)
        curvature = (ratio * (ratio + at)).clamp(min=0) / width.square()
        return -2 * beta * chance, beta * signs * ratio / width, beta * curvature


def likelihood(update: Distortion, left_out: Tensor, scale: float) -> Likelihood:
    """The likelihood where ``left_out (coordinate,)`` is the variance that the search ignores.

    Kept coordinates and signs get a floor on their errors, a small share of their size.
    """
    parts = update.values.split(update.sizes)
    sizes = torch.cat([part.square().mean().sqrt().expand_as(part) for part in parts])
    floor = torch.zeros_like(sizes)
    if update.pruned and not update.signs:
        floor = CUTS.exact_share * update.values[update.sent].square().mean().sqrt()
    if update.signs:
        floor = CUTS.exact_share * sizes
    return Likelihood(update, update.variance + scale**2 * left_out + floor**2)
