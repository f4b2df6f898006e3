"""Optimal noise: as much on each coordinate as it tells of the example, for its size."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from fedsim.defenses.base import Defense, DefenseFamily, Distortion, Step
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError
from fedsim.types import Batch, Tensors

_LEAST, _MOST = 1e-8, 1e6
"""Least magnitude of a coordinate and greatest ratio, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class OptimalNoise(Defense):
    """Gaussian noise whose size differs between coordinates (Chen et al. 2024, "Optimal Defenses").

    With g the mean gradient of a step, x its examples and J = dg / dx, coordinate i gets noise of
    standard deviation

        s_i = std * n_i / sqrt(mean of n^2),  n_i = sqrt(|J_i| / |g_i|),

    where |J_i|, the length of row i, is estimated as the root mean square of ``J v`` over
    ``samples`` normal vectors v. At equal mean variance this maximises, by the authors' account,
    the lower bound on any attacker's error for a given loss of utility, which they take to weigh
    each coordinate's variance by its size. Written from their published code; the text of the paper
    was not at hand. A coordinate that is 0 gets the greatest ratio, so that ReLU networks put most
    of the noise on dead units.

    The noise is per coordinate, and hence not differential privacy: its size itself depends on the
    example. An adaptive attacker learns from examples of its own what noise to expect where.

    Attributes:
        std: root mean square of the standard deviations, in units of the gradient.
        samples: vectors by which lengths are estimated.
    """

    title: ClassVar[str] = "optimal noise"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = "How much noise is expected where, learned from other examples."
    claim: ClassVar[str] = "protects better than noise and pruning, with better utility"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"noise"})
    tuned_by: ClassVar[Strength] = Strength("std", 1e-4, 10.0)

    std: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    samples: Annotated[int, Field(ge=1)] = 10

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """The gradient with noise, drawn where ``rng`` lives, in the model's order.

        Raises:
            ConfigError: the examples are token ids, by which nothing has a derivative.
        """
        if not step.batch.inputs.is_floating_point():
            raise ConfigError("optimal_noise: needs derivatives by the inputs. Choose images.")
        lengths = self.lengths(gradient, step, rng)
        ratios = {
            name: (lengths[name] / value.abs().clamp(min=_LEAST)).clamp(max=_MOST).sqrt()
            for name, value in gradient.items()
        }
        every = torch.cat([value.flatten() for value in ratios.values()])
        unit = every.square().mean().sqrt().clamp(min=_LEAST)
        return {
            name: value + self.std * ratios[name] / unit * _normal(value.shape, rng).to(value)
            for name, value in gradient.items()
        }

    def lengths(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """Estimated length of each coordinate's derivative by the examples, shaped as gradients."""
        loss = _Loss(step)
        held = {f"model.{name}": p.detach() for name, p in step.model.named_parameters()}
        sent = {f"model.{name}": held[f"model.{name}"] for name in gradient}

        def of(inputs: Tensor) -> Tensors:
            def value(parameters: Tensors) -> Tensor:
                losses: Tensor = functional_call(loss, held | parameters, (inputs,))
                return losses

            slopes: Tensors = grad(value)(sent)
            return slopes

        inputs = step.batch.inputs
        drawn = _normal((self.samples, *inputs.shape), rng).to(inputs)
        with torch.no_grad():
            slopes: Tensors = vmap(lambda along: jvp(of, (inputs,), (along,))[1])(drawn)
        return {name: slopes[f"model.{name}"].square().mean(0).sqrt() for name in gradient}


class _Loss(nn.Module):
    """A step's loss as a module of its inputs."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.model, self.step = step.model, step

    def forward(self, inputs: Tensor) -> Tensor:
        batch = self.step.batch
        return self.step.loss(self.model, Batch(inputs, batch.labels, batch.mask))


def _normal(shape: tuple[int, ...] | torch.Size, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)
