"""A first layer that is linear and followed by ReLU: where it is, and what its gradient says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attacks.feasibility import Prospect
from attacks.observed.cuts import CUTS
from attacks.observed.declared import declared_training
from attacks.observed.seen_input import SeenInput, seen_input
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.local.gradients import mean_gradient
from fedsim.local.steps import Descent
from fedsim.models.network import copied
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_PROBES = 16  # random images that show what follows the layer


@dataclass(frozen=True, slots=True)
class FirstLinear:
    """Names of the layer and of its parameters, and what it is given of an image.

    Attributes:
        seen: how its input depends on the pixels; None if it is the pixels.
    """

    module: str
    weight: str
    bias: str
    seen: SeenInput | None = None

    def pixels(self, inputs: Tensor) -> Tensor:
        """Pixels ``(..., value)`` of which the layer is given ``inputs``."""
        return inputs if self.seen is None else self.seen.image(inputs)


@dataclass(frozen=True, slots=True)
class UnitRows:
    """What each unit received: ``sum_i d_ij [x_i, 1]``, with ``d_ij`` the slope of the mean loss.

    Attributes:
        matrix: weight gradient and bias gradient, float64 ``(unit, input + 1)``; any positive
            scale.
        noise: standard deviation of an entry's rounding on the wire, ``(unit,)``.
        alike: length of a row's rounding where all entries are rounded alike, as those of pixels
            of one colour are, ``(unit,)``.
    """

    matrix: Tensor
    noise: Tensor
    alike: Tensor


def find_first_linear(network: nn.Module, task: Task, rng: torch.Generator) -> FirstLinear:
    """The layer that takes the flattened image, found by what it does to random images.

    Its input has to be the pixels, normalised one by one or as they are, and the loss may depend on
    a unit where it is positive alone, which is what ReLU does whether it is a module or a function.

    Raises:
        CannotAttack: there is no such layer, or it has no bias; or targets are no classes.
    """
    if task.spec.target != "class":
        raise CannotAttack(
            "it tries every class of an image, and the targets of this model are no classes",
            "Choose 'closed_form' for one example, or an attack that searches.",
        )
    parameter = next(network.parameters())
    images = torch.rand(_PROBES, *task.spec.input_shape, generator=rng).to(parameter)
    seen: list[tuple[str, Tensor, Tensor]] = []

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        return module.register_forward_hook(
            lambda module, args, output: seen.append((name, args[0], output))
        )

    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    hooks = [watch(name, module) for name, module in linear]
    labels = torch.arange(_PROBES, device=parameter.device) % task.spec.num_classes
    loss = task.loss(network, Batch(images, labels))
    for hook in hooks:
        hook.remove()
    where = type(network).__name__
    try:
        given = seen_input(network, task, seen[0][0]) if seen else None
    except CannotAttack:
        given = None
    if given is None or seen[0][1].dim() != 2:
        raise CannotAttack(
            f"{where} has no linear layer that takes the pixels as they are",
            "Choose a model whose first layer is fully connected, such as 'mlp'.",
        )
    name, _, output = seen[0]
    (slopes,) = torch.autograd.grad(loss, output)
    off, on = slopes[output < 0], slopes[output > 0]
    if bool((off != 0).any()) or not bool((on != 0).any()):
        raise CannotAttack(
            f"{name!r} of {where} is not followed by ReLU, so no unit is silent",
            "Choose a model with ReLU, such as 'mlp'.",
        )
    if dict(linear)[name].bias is None:
        raise CannotAttack(
            f"{name!r} of {where} has no bias, whose gradient sets the scale of an image",
            "Choose a model with a bias, such as 'mlp'.",
        )
    weight, bias = (f"{name}.{own}" if name else own for own in ("weight", "bias"))
    return FirstLinear(name, weight, bias, None if given.plain else given)


def first_linear_of(prospect: Prospect) -> nn.Linear:
    """That layer at the first weights, in float64.

    Raises:
        CannotAttack: as ``find_first_linear``.
    """
    network = copied(prospect.network).double()
    layer = find_first_linear(network, prospect.task, torch.Generator().manual_seed(0))
    found = network.get_submodule(layer.module)
    assert isinstance(found, nn.Linear)
    return found


def unit_rows(observation: Observation, layer: FirstLinear, device: torch.device) -> UnitRows:
    """The observed rows of the layer.

    Raises:
        CannotAttack: the client did not send them.
    """
    names = (layer.weight, layer.bias)
    if missing := [name for name in names if name not in observation.received]:
        raise CannotAttack(
            f"{missing[0]!r} was not sent, and the images are read off its gradient",
            "Freeze fewer layers.",
        )
    update = observation.update(names)
    matrix = torch.cat([update[layer.weight], update[layer.bias][:, None]], 1)
    if not bool(matrix.isfinite().all()):
        raise CannotAttack(
            f"the update of {layer.weight!r} holds NaN or infinite values",
            "Lower federation.learning_rate.",
        )
    value = observation.received[layer.weight]
    half = torch.finfo(value.dtype).eps / 2
    noise = half * value.double().square().mean(1).sqrt()
    alike = 4 * half * matrix.norm(dim=1)  # the wire's, and those of the client's own sums
    return UnitRows(matrix.to(device), noise.to(device), alike.to(device))


def slopes(network: nn.Module, task: Task, layer: FirstLinear, images: Tensor) -> Tensor:
    """``dL_i/dz`` of each image alone, for each class it may have: ``(image, class, unit)``."""
    outputs: list[Tensor] = []
    hook = network.get_submodule(layer.module).register_forward_hook(
        lambda module, args, output: outputs.append(output)
    )
    found = []
    for label in range(task.spec.num_classes):
        labels = torch.full((len(images),), label, device=images.device)
        loss = task.loss(network, Batch(images, labels)) * len(images)
        found.append(torch.autograd.grad(loss, outputs.pop())[0])
    hook.remove()
    return torch.stack(found, 1)


@dataclass(frozen=True, slots=True)
class Proof:
    """How far the update that a batch makes is from the observed one.

    Attributes:
        error: ``||G - a g|| / ||G||`` with the best scale ``a > 0``, the larger one of all
            parameters and of the first layer alone.
        bound: what rounding explains.
        factor: the best scale.
    """

    error: float
    bound: float
    factor: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether rounding explains all of the difference."""
        return self.error <= self.bound <= CUTS.loosest_proof


def prove(
    observation: Observation,
    task: Task,
    batch: Batch,
    weights: Tensor,
    layer: FirstLinear,
    tolerance: float,
) -> Proof:
    """Replay the client on ``batch`` in float64 and compare.

    The examples count as ``weights`` say, since one may stand twice in a batch and clipping makes
    another one lighter.

    A gradient and one local step are replayed as they are, and so are several steps of a client
    whose every step takes the whole batch. No other client can be replayed, since the order of its
    examples is not known: it is compared as if it had made one step.

    Raises:
        CannotAttack: the client trained with an option that this version does not have.
    """
    network = task.model(observation.sent, device=batch.inputs.device).double()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in observation.received)
    parameters = {k: p for k, p in network.named_parameters() if p.requires_grad}
    start = {name: value.detach().clone() for name, value in parameters.items()}
    config, shares = declared_training(observation), (weights / weights.sum()).tolist()

    def mean() -> Tensors:
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for i, share in enumerate(shares):
            for name, gradient in mean_gradient(task, config, network, batch[i])[0].items():
                total[name] += share * gradient
        return total

    if observation.kind == "gradient":
        made = mean()
    else:
        steps = _whole_steps(observation)
        descent = Descent(config, parameters, steps, 1)
        for _ in range(steps):
            descent.step(mean())
        made = {name: value - parameters[name].detach() for name, value in start.items()}
    proofs = [
        _compare(observation, made, names, tolerance)
        for names in (tuple(made), (layer.weight, layer.bias))
    ]
    return max(proofs, key=lambda proof: proof.error / proof.bound)


def _whole_steps(observation: Observation) -> int:
    """Local steps that all take the whole batch; 1 where this is not known of more."""
    known = observation.knowledge
    whole = known.num_examples and known.batch_size and known.num_examples <= known.batch_size
    return known.local_steps or 1 if whole and known.learning_rate else 1


def _compare(
    observation: Observation, made: dict[str, Tensor], names: Sequence[str], tolerance: float
) -> Proof:
    observed = observation.update(names)
    goal = torch.cat([observed[name].flatten() for name in names])
    guess = torch.cat([made[name].flatten() for name in names]).cpu()
    rounding = sum(
        (torch.finfo(value.dtype).eps / 2) ** 2 * float(value.double().square().sum())
        for value in (observation.received[name] for name in names)
    )
    both, norm = float(goal @ guess), float(goal.norm())
    if both <= 0:
        return Proof(1.0, tolerance)
    factor = both / float(guess @ guess)
    error = float((goal - guess * factor).norm()) / norm
    return Proof(error, tolerance + 2 * rounding**0.5 / norm, factor)
