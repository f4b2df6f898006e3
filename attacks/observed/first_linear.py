"""A first layer that is linear and followed by ReLU: where it is, and what its gradient says."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.feasibility import Prospect
from attacks.observed.calls import noted
from attacks.observed.readings import read
from attacks.observed.seen_input import SeenInput, seen_input
from fedsim.errors import CannotAttack
from fedsim.models.network import copied
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

_COMPARED, _PARALLEL = 4, 1e-6  # random images, and how far their slopes may be from parallel
_PROBES = 16  # random images that show what follows the layer
_SPARE = 20  # entries beyond those that tell an input and its slopes, by which a mask is told
_ONE_INPUT = 1e-4
"""Relative error of the entries that a mask left, up to which they are those of one input; float32
leaves 1e-7."""
_MISSED = 1e-3
"""Chance that a random mask leaves out an input at each unit, below which the input is 0."""


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
    linear = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    labels = torch.arange(_PROBES, device=parameter.device) % task.spec.num_classes
    with noted(linear) as calls:
        loss = task.loss(network, Batch(images, labels))
    where = type(network).__name__
    try:
        given = seen_input(network, task, calls[0].name) if calls else None
    except CannotAttack:
        given = None
    if given is None or calls[0].input.dim() != 2:
        raise CannotAttack(
            f"{where} has no linear layer that takes the pixels as they are",
            "Choose a model whose first layer is fully connected, such as 'mlp'.",
        )
    name, output = calls[0].name, calls[0].output
    (slopes,) = torch.autograd.grad(loss, output)
    off, on = slopes[output < 0], slopes[output > 0]
    if bool((off != 0).any()) or not bool((on != 0).any()):
        raise CannotAttack(
            f"{name!r} of {where} is not followed by ReLU, so no unit is silent",
            "Choose a model with ReLU, such as 'mlp'.",
        )
    if linear[name].bias is None:
        raise CannotAttack(
            f"{name!r} of {where} has no bias, whose gradient sets the scale of an image",
            "Choose a model with a bias, such as 'mlp'.",
        )
    weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
    return FirstLinear(name, weight, bias, None if given.plain else given)


def first_linear_of(prospect: Prospect) -> nn.Linear:
    """That layer at the first weights, in float64.

    Raises:
        CannotAttack: as ``find_first_linear``.
    """
    network = copied(prospect.network).double()
    layer = find_first_linear(network, prospect.task, torch.Generator().manual_seed(0))
    linear = network.get_submodule(layer.module)
    assert isinstance(linear, nn.Linear)
    return linear


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
    """``dL_i/dz`` of each image alone, for each class it may have: ``(image, class, unit)``.

    A loss may call the network several times, whose slopes add up.
    """
    single = []
    with noted({layer.module: network.get_submodule(layer.module)}) as calls:
        for label in range(task.spec.num_classes):
            labels = torch.full((len(images),), label, device=images.device)
            loss = task.loss(network, Batch(images, labels)) * len(images)
            outputs = [call.output for call in calls]
            calls.clear()
            each = torch.autograd.grad(loss, outputs, allow_unused=True, materialize_grads=True)
            single.append(torch.stack(each).sum(0))
    return torch.stack(single, 1)


def has_parallel_slopes(network: nn.Module, task: Task, layer: FirstLinear) -> bool:
    """Whether the slopes of all examples are parallel at the units that they share.

    So they are behind one hidden layer with a single output or two classes.
    """
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(_COMPARED, *task.spec.input_shape, generator=rng, dtype=torch.float64)
    weight = network.get_parameter(layer.weight)
    of_units = slopes(network, task, layer, images.to(weight))[:, 0]
    unit = torch.nn.functional.normalize(of_units[:, (of_units != 0).all(0)], dim=1)
    return bool(unit.numel()) and bool((unit @ unit.T).abs().min() > 1 - _PARALLEL)


@dataclass(frozen=True, slots=True)
class ShownInput:
    """What a linear layer's gradient of a single example, ``d x^T``, shows of its input ``x``.

    Attributes:
        values: the input; nan where no entry shows it, ``(input,)``.
        masked: whether entries were left out, and all others are those of this input alone.
    """

    values: Tensor
    masked: bool


def shown_input(weight: Tensor, slopes: Tensor) -> ShownInput:
    """The input of a linear layer by its gradient of a single one.

    Where entries were left out, those that were sent tie a unit's slope to the inputs of its row:
    the units whose bias was sent lead to their inputs, these to the units that share them, and so
    on. A zero among others of its column was left out, as by a mask, and says nothing.

    Args:
        weight: gradient ``(unit, input)``, 0 where it was not sent.
        slopes: gradient of the bias ``(unit,)``.
    """
    seen = read(weight)
    sent = torch.ones_like(weight) if seen.step else (weight != 0).to(weight)
    for _ in range(len(slopes)):
        values = weight.T @ slopes / (sent.T @ slopes.square()).clamp(min=1e-300)
        known = sent @ values.square()
        unknown = (slopes == 0) & weight.any(1) & (known > 0)
        if not unknown.any():
            break
        slopes = slopes.where(~unknown, weight @ values / known.clamp(min=1e-300))
    driven = slopes != 0
    ties = sent[driven].sum(0)
    spare = float(ties.sum()) - int(driven.sum()) - int((ties > 0).sum())
    error = (weight - sent * torch.outer(slopes, values)).norm()
    # Signs are products of signs, of an input that nobody had.
    if seen.complete or seen.signs or spare < _SPARE or error > _ONE_INPUT * weight.norm():
        return ShownInput(values if driven.any() else values.fill_(torch.nan), masked=False)
    # Of a random mask, an input that so many units would show is 0; of the largest entries, small.
    missed = (1 - sent[driven][:, ties > 0].mean()) ** int(driven.sum())
    zero = missed < _MISSED and not bool(seen.upper.isfinite().all())
    return ShownInput(values.where((ties > 0) | zero, torch.nan), masked=True)
