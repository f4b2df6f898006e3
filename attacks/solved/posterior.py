"""The likeliest image given an update and a prior, by Gauss-Newton from coarse to fine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import jvp, vmap

from attacks.base import Job
from attacks.observed.distortion import Distortion
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import Replay
from fedsim.errors import CannotAttack
from fedsim.types import Batch

_POSTERIOR_STEPS = 12
"""Most steps of Gauss-Newton at each of these."""
_POSTERIOR_GAIN = 3e-4
"""Relative gain of a step below which the search ends."""
_EXACT_SHARE = 0.01
"""Error of a kept coordinate or a sign, by its tensor's root mean square."""
_SIGN_WEIGHT = 0.1
"""Weight of a sign, since errors of what is left out are shared by many signs."""
_PRUNED_SOFTNESS = 0.3
"""By how much a zeroed coordinate may exceed the smallest one kept, as a share of it."""
_PRUNED_EXCESS = 3.0
"""Factor on the smallest kept magnitude above which a zeroed coordinate was not among the
smallest."""
_PRUNED_LARGE = 0.2
"""Share of such coordinates from which zeros are a random choice."""
FITTED_SCALE = 10.0
"""By how much a fitted scale must improve the objective, and a class or scale to rule out
another."""


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
        weight = float(self.guarded) / (_PRUNED_SOFTNESS * bound).square()
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
        signs, beta = self.update.values.sign(), _SIGN_WEIGHT * self.update.sent
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
        floor = _EXACT_SHARE * update.values[update.sent].square().mean().sqrt()
    if update.signs:
        floor = _EXACT_SHARE * sizes
    return Likelihood(update, update.variance + scale**2 * left_out + floor**2)


_AT_ONCE = 64  # directions differentiated by one vmap
_DRAWS = 32  # random images that measure what is left out
_TRIES = 8  # dampings of one step
_SCALE = 0.25  # 1 by the variance of the scale's logarithm
_DAMPING = 1e-3  # first damping, by the mean curvature


@dataclass(frozen=True)
class Posterior:
    """An estimate with its expected error.

    Attributes:
        image: ``(channel, height, width)`` in float64, not clamped.
        target: its class int64 ``(1,)``, or its targets.
        objective: ``-2 log`` of likelihood times prior, up to a constant.
        error: expected mean squared error of a pixel; where the update is not explained, as many
            times as the misfit is too large.
        coefficients: of the prior, in standard deviations, those with the largest variances first.
        scale: what the client multiplied its gradient by.
        steps: of Gauss-Newton.
    """

    image: Tensor
    target: Tensor
    objective: float
    error: float
    coefficients: Tensor
    scale: float
    steps: int


@dataclass(frozen=True)
class Estimator:
    """Gauss-Newton for ``-2 log p(update | scale g(image)) + |coefficients|^2``.

    Where the gradient is linear in the image and the noise Gaussian, one step is the Wiener filter,
    ``mean + S J^T (J S J^T + V)^-1 (y - g(mean))``; each further step linearises anew. As the noise
    grows the estimate falls back to the prior's mean. What coefficients beyond those searched for
    add to the gradient counts as noise, measured by random draws.

    Attributes:
        exact: the model in float64.
        quick: the same in float32, for the derivatives.
    """

    exact: Replay
    quick: Replay
    update: Distortion
    prior: PixelPrior
    job: Job

    def gradient(self, image: Tensor, target: Tensor) -> Tensor:
        """All coordinates ``(coordinate,)`` of an image's gradient, in float64."""
        with torch.no_grad():
            return self._flat(self.exact, target)(image.double()).double()

    def search(
        self, target: Tensor, scale: float, size: int, start: Posterior | None, rng: torch.Generator
    ) -> Posterior:
        """The estimate in the ``size`` strongest coefficients.

        Args:
            target: of the image.
            scale: what the client multiplied its gradient by; other than 1 it is fitted.
            size: number of coefficients.
            start: an estimate in fewer coefficients.
            rng: of the draws.
        """
        numbers = self.prior.strongest(size)
        basis = self.prior.basis(numbers)
        # The last unknown is the logarithm of the scale.
        unknowns = self.prior.mean.new_zeros(len(numbers) + 1)
        unknowns[-1] = math.log(scale)
        if start is not None:
            unknowns[: len(start.coefficients)] = start.coefficients
            unknowns[-1] = math.log(start.scale)
        side = float(unknowns[-1].sign())
        free = bool(side)
        model = self._likelihood(unknowns, basis, target, numbers, rng)
        value, damping, steps = self._objective(model, unknowns, basis, target), 0.0, 0
        while steps < _POSTERIOR_STEPS:
            steps += 1
            slopes, curvature = self._system(model, unknowns, basis, target, free)
            new, tried = value, unknowns
            for _ in range(_TRIES):
                tried = unknowns + _solve(curvature, slopes, damping)
                tried[-1] = (side * tried[-1]).clamp(min=0) * side  # not beyond 1
                new = self._objective(model, tried, basis, target)
                if new < value:
                    break
                damping = max(10 * damping, _DAMPING * float(curvature.diagonal().mean()))
            if not new < value:
                break
            gain, value, unknowns = value - new, new, tried
            damping = 0.1 * damping if damping > 1e-6 else 0.0
            if gain < _POSTERIOR_GAIN * value + 0.5 or self.job.expired:
                break
        spread = torch.cholesky_inverse(_factor(curvature, 0.0)).diagonal()[:-1]
        variances = self.prior.variances.flatten()
        unsearched = float(variances.sum() - variances[numbers].sum())
        error = (float((spread * variances[numbers]).sum()) + unsearched) / variances.numel()
        image, factor = self._image(unknowns, basis), float(unknowns[-1].exp())
        misfit = max(1.0, model.misfit(factor * self.gradient(image, target)))
        steps += 0 if start is None else start.steps
        return Posterior(image, target, value, error * misfit, unknowns[:-1], factor, steps)

    def score(self, image: Tensor, target: Tensor, scale: float) -> float:
        """The objective of any image, in all coefficients."""
        model = likelihood(self.update, torch.zeros_like(self.update.variance), scale)
        cost = model(scale * self.gradient(image, target))[0].sum()
        return float(cost + self.prior.coefficients(image[None]).square().sum())

    def _image(self, unknowns: Tensor, basis: Tensor) -> Tensor:
        return self.prior.mean + torch.einsum("k,kchw->chw", unknowns[: len(basis)], basis)

    def _flat(self, model: Replay, target: Tensor) -> Callable[[Tensor], Tensor]:
        labels = target.to(self.prior.mean.device)

        def gradient(image: Tensor) -> Tensor:
            gradients = model.pure_gradient(Batch(image[None], labels))
            return torch.cat([value.flatten() for value in gradients.values()])

        return gradient

    def _derivatives(self, image: Tensor, target: Tensor, directions: Tensor) -> Tensor:
        """``(coordinate, direction)`` in float32."""
        gradient, at = self._flat(self.quick, target), image.float()

        def along(direction: Tensor) -> Tensor:
            slope: Tensor = jvp(gradient, (at,), (direction,))[1]
            return slope

        with torch.no_grad():
            slopes: Tensor = vmap(along, chunk_size=_AT_ONCE)(directions.float())
        return slopes.T

    def _likelihood(
        self, unknowns: Tensor, basis: Tensor, target: Tensor, numbers: Tensor, rng: torch.Generator
    ) -> Likelihood:
        image, scale = self._image(unknowns, basis), float(unknowns[-1].exp())
        left_out = torch.zeros_like(self.update.variance)
        if len(numbers) < self.prior.variances.numel():
            drawn = self.prior.draw(_DRAWS, numbers, rng)
            left_out = self._derivatives(image, target, drawn).double().square().mean(1)
        model = likelihood(self.update, left_out, scale)
        if self.update.pruned:
            # A random choice zeroes large coordinates, too.
            seen = self.gradient(image, target)[~self.update.sent].abs() * scale
            large = (seen > _PRUNED_EXCESS * self.update.bound).double().mean()
            model = replace(model, guarded=float(large) < _PRUNED_LARGE)
        return model

    def _objective(
        self, model: Likelihood, unknowns: Tensor, basis: Tensor, target: Tensor
    ) -> float:
        gradient = unknowns[-1].exp() * self.gradient(self._image(unknowns, basis), target)
        cost = model(gradient)[0].sum() + unknowns[:-1].square().sum()
        fitted = FITTED_SCALE if bool(unknowns[-1]) else 0.0
        return float(cost + _SCALE * unknowns[-1].square()) + fitted

    def _system(
        self, model: Likelihood, unknowns: Tensor, basis: Tensor, target: Tensor, free: bool
    ) -> tuple[Tensor, Tensor]:
        """Descent direction and curvature of half the objective, the prior's part included."""
        image, scale = self._image(unknowns, basis), float(unknowns[-1].exp())
        gradient = scale * self.gradient(image, target)
        slopes = scale * self._derivatives(image, target, basis)
        slopes = torch.cat([slopes, float(free) * gradient[:, None].float()], 1)
        _, slope, curvature = model(gradient)
        weighted = slopes * curvature.sqrt().float()[:, None]
        system = (weighted.T @ weighted).double()
        prior = torch.ones_like(unknowns)
        prior[-1] = _SCALE
        system.diagonal().add_(prior)
        return slopes.T.double() @ slope - prior * unknowns, system


def _factor(system: Tensor, damping: float) -> Tensor:
    if not bool(system.isfinite().all()):
        raise CannotAttack(
            "no image has a gradient near this update: the curvature of its likelihood overflows",
            "Choose an attack that searches, and pass the optimizer if it is known.",
        )
    damped = system.clone()
    damped.diagonal().add_(damping)
    factor, failed = torch.linalg.cholesky_ex(damped)
    while failed:
        damping = max(10 * damping, 1e-9 * float(system.diagonal().mean()))
        damped.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
    lower: Tensor = factor
    return lower


def _solve(system: Tensor, slopes: Tensor, damping: float) -> Tensor:
    step: Tensor = torch.cholesky_solve(slopes[:, None], _factor(system, damping))[:, 0]
    return step
