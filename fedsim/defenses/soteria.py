"""Soteria: the representation's most telling features are left out of the last layer's gradient."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedsim.defenses.base import Defense, DefenseFamily, Distortion, Step
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError
from fedsim.types import Tensors

_COPIES = 256
"""Copies of an image in one pass, each differentiated for one feature."""
_OFFSET = 0.1
"""Added to each feature in the denominator, as the authors' code does for a LeNet."""


@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Zeroes columns of the last layer's weight gradient (Sun et al. 2021, "Soteria").

    With r the input of the last linear layer and X an image, feature i scores

        s_i = sum over the batch of |d r_i / d X| / (r_i + 0.1),

    and the gradient's columns of the ``percentile`` percent of features with the smallest score are
    set to 0. All other layers, and the bias, are sent as they are.

    Balunovic et al. 2022 break it by leaving the layer out of the comparison. Here the zeros are in
    plain sight, and an adaptive attacker leaves out no more than them.

    Attributes:
        percentile: share of the features that is left out, in percent; 70 in the attack of
            Balunovic et al. 2022.
    """

    title: ClassVar[str] = "Soteria"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = "The zeros, which are left out of the comparison."
    claim: ClassVar[str] = "errors up to 160 times those under other defenses, no accuracy lost"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sparsity"})
    tuned_by: ClassVar[Strength] = Strength("percentile", 10.0, 99.99, "rest", end=100.0)

    percentile: Annotated[float, Field(ge=0, lt=100)] = 70.0

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """The gradient without the columns; ``rng`` is not used.

        Raises:
            ConfigError: the model takes no images, or its last parameters are of no linear layer.
        """
        del rng
        name, layer = self._head(step.model)
        if not step.batch.inputs.is_floating_point():
            raise ConfigError("soteria: its scores are derivatives by pixels. Choose images.")
        scores = self.scores(step, layer)
        least = torch.quantile(scores, self.percentile / 100)
        return gradient | {name: gradient[name] * (scores.abs() >= least).to(gradient[name])}

    def _head(self, model: nn.Module) -> tuple[str, nn.Linear]:
        *_, (name, layer) = ((n, m) for n, m in model.named_modules() if not [*m.children()])
        linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        if not linear or linear[-1][1] is not layer:
            raise ConfigError(
                f"soteria: {type(model).__name__} does not end in a linear layer. "
                "Choose lenet, mlp or a ResNet."
            )
        return f"{name}.weight", linear[-1][1]

    def scores(self, step: Step, layer: nn.Linear) -> Tensor:
        """``s (feature,)``: of the features that enter ``layer``, summed over the examples."""
        entered: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        total = torch.zeros(layer.in_features, device=step.batch.inputs.device)
        try:
            for image in step.batch.inputs:
                for some in torch.arange(layer.in_features).split(_COPIES):
                    copies = image.expand(len(some), *image.shape).clone().requires_grad_(True)
                    with torch.enable_grad():
                        step.model(copies)
                        features = entered.pop()[range(len(some)), some]
                        (slopes,) = torch.autograd.grad(features.sum(), copies)
                    total[some] += slopes.flatten(1).norm(dim=1) / (features.detach() + _OFFSET)
        finally:
            handle.remove()
        return total
