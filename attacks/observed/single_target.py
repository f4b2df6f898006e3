"""The target of a single example, and the scale of its gradient, from the last linear layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.observed.calls import inputs_of
from attacks.observed.labels import Head, find_head, infer_label
from attacks.observed.replay import Replay, observed_gradient
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.targets import output_slopes
from fedsim.types import Batch, Tensors

_TRIED = 4
"""Classes with the lowest, and as many with the highest, slopes that are tried."""
_STEPS = 10
"""Of Newton's method; a loss that is linear in its targets takes one."""
_FIXED = "not differentiable with respect to argument"
"""What torch says of the target of a loss that takes sides and no numbers."""
_EXPLAINED = 0.1
"""Part of the slopes left unexplained from which the sign alone tells the class, as under noise;
at half or twice as much the classes of no test change."""
_EXACT = 1e-3
"""Part of the slopes left unexplained up to which a factor is trusted; float16 leaves half."""
_SAME = 1e-3
"""Relative difference of a scale from 1 that float32 and a schedule's last digits explain."""


@dataclass(frozen=True)
class SingleTarget:
    """What the last layer tells of one example.

    Attributes:
        target: class int64 ``(1,)``, or targets ``(1, target)``.
        factor: what the loss's gradient was multiplied by: of a sum, a weight, gradients that were
            scaled, or another learning rate than is known. It is 1 where the targets are numbers.
        error: relative part of the slopes that the target does not explain.
        checked: whether more slopes than unknowns agree, so that noise would show.
        ranged: whether other numbers have the same slopes, as beyond the bend of an L1 loss.
    """

    target: Tensor
    factor: float
    error: float
    checked: bool = False
    ranged: bool = False

    @property
    def trusted(self) -> float:
        """The factor where noise would show, else 1."""
        return self.factor if self.checked and self.error <= _EXACT else 1.0


def scale_note(factor: float) -> str:
    """The factor in words; empty if it is 1."""
    if abs(factor - 1) <= _SAME:
        return ""
    shown = f"{factor:.2f}" if 0.1 <= factor < 1e6 else f"{factor:.3g}"
    return f"the gradient is {shown} times that of the loss"


def target_note(single: SingleTarget) -> str:
    """That numbers stand for others that the loss does not tell apart; empty if it does."""
    if not single.ranged:
        return ""
    return "the loss tells on which side of the output its target lies, and not how far"


def single_target(
    network: nn.Module, task: Task, gradient: Tensors, head: Head, image: Tensor | None = None
) -> SingleTarget:
    """The target whose slope at the last layer's outputs is the observed one, up to a factor.

    With one example the layer's input is ``h = G_W^T g / |g|^2`` at any scale of the update, ``g``
    being the bias gradient, and its outputs are ``z = W h + b``. Then ``g = c dL/dz(z, y)``: for a
    softmax ``c (p - y)``, one unknown factor for as many equations as classes; for a squared error
    ``2 (z - y)``, solved for ``y`` at ``c = 1``, as a factor cannot be told from the target.

    Args:
        network: as broadcast, in float64.
        task: whose loss is asked for its slopes.
        gradient: observed, of the head's weight and bias at least; of the weight alone, or of a
            part of its entries, where the image is known, which tells the layer's input.
        head: the last linear layer, whose outputs the loss is a function of.
        image: ``(1, channel, height, width)``, if it is known, for losses of other outputs, too.

    Raises:
        CannotAttack: as ``infer_label``, where the bias was not sent.
    """
    if task.spec.target == "none":
        return SingleTarget(task.any_labels(1), 1.0, 0.0)
    has_bias = head.bias in gradient
    if head.weight not in gradient or not (has_bias or image is not None):
        return SingleTarget(torch.tensor([infer_label(gradient, head)]), 1.0, 1.0)
    layer, weight = network.get_submodule(head.layer), gradient[head.weight]
    bias = gradient[str(head.bias)] if has_bias else torch.zeros_like(weight[:, 0])
    whole = bool(bias.all()) or image is None
    if image is None:
        image = torch.full((1, *task.spec.input_shape), 0.5)
    image = image.to(weight)
    with torch.no_grad():
        if whole:
            features = weight.T @ bias / bias.square().sum()
        else:
            batch = Batch(image, task.any_labels(1).to(image.device))
            features = inputs_of([layer], lambda: task.loss(network, batch))[0][0]
            sent = (weight != 0).to(weight)
            by_row = weight @ features / (sent @ features.square()).clamp(min=1e-300)
            bias = bias.where(bias != 0, by_row)
        outputs = layer(features[None])

    def slopes(target: Tensor) -> Tensor:
        batch = Batch(image, target.to(bias.device))
        return output_slopes(task.loss, network, head.layer, outputs, batch)[0]

    if task.spec.target == "numbers":
        try:
            return _solved(slopes, bias, outputs, task)
        except RuntimeError as error:
            if _FIXED not in str(error):
                raise
        ones = torch.ones(1, task.spec.targets).to(bias)  # labels of -1 and 1, as of margins
        return min((_fitted(slopes(s * ones), bias, s * ones) for s in (-1, 1)), key=_error)
    tried = [_fitted(slopes(target), bias, target) for target in _candidates(bias, task)]
    best = min(tried, key=lambda fit: fit.error)
    if best.error > _EXPLAINED and task.spec.target == "class" and _ends(bias, task):
        return SingleTarget(torch.tensor([infer_label(gradient, head)]), 1.0, best.error)
    return best


def _error(fit: SingleTarget) -> float:
    return fit.error


def _ends(bias: Tensor, task: Task) -> bool:
    """Whether the last linear layer has an output for each class."""
    return len(bias) == task.spec.num_classes > 1


def _candidates(bias: Tensor, task: Task) -> list[Tensor]:
    if task.spec.target == "classes":
        return [(bias[None] < 0).to(bias)]
    if len(bias) == 1:
        return [torch.tensor([0]), torch.tensor([1])]
    if not _ends(bias, task):  # what follows, such as a cosine with prototypes, makes the classes
        return [torch.tensor([label]) for label in range(task.spec.num_classes)]
    order = bias.argsort().tolist()
    return [torch.tensor([label]) for label in dict.fromkeys([*order[:_TRIED], *order[-_TRIED:]])]


def _fitted(slopes: Tensor, bias: Tensor, target: Tensor) -> SingleTarget:
    """The target with its best factor; without one that is positive it explains nothing."""
    slopes = slopes * (bias != 0)  # of an output of which nothing was sent, nothing is known
    both, energy = float(bias @ slopes), float(slopes.square().sum())
    if not both > 0 or not energy > 0:
        return SingleTarget(target, 1.0, float("inf"))
    factor = both / energy
    error = float((bias - factor * slopes).norm() / bias.norm())
    return SingleTarget(target, factor, error, checked=len(bias) > 1)


def _solved(
    slopes: Callable[[Tensor], Tensor], bias: Tensor, outputs: Tensor, task: Task
) -> SingleTarget:
    """Numbers whose slopes are the observed ones, by Newton's method from beside the outputs."""
    size = task.spec.targets
    start = outputs[:, :size] - bias[None, :size].sign() / 2
    target, ranged = start.detach(), False
    for _ in range(_STEPS):
        target = target.detach().requires_grad_()
        reached = slopes(target)
        rest = (bias - reached).detach()
        rows = torch.stack([_row(slope, target) for slope in reached])
        ranged = bool((rows == 0).all(0).any())
        if rest.norm() <= 1e-12 * bias.norm() or not reached.requires_grad:
            break
        step = torch.linalg.lstsq(rows, rest[:, None], driver="gelsd").solution
        target = target + step.T
    target = target.detach()
    error = float((bias - slopes(target).detach()).norm() / bias.norm())
    return SingleTarget(target, 1.0, error, ranged=ranged)


def _row(slope: Tensor, target: Tensor) -> Tensor:
    """Derivatives of one slope by the numbers of one example."""
    if not slope.requires_grad:
        return torch.zeros_like(target[0])
    row: Tensor = torch.autograd.grad(
        slope, target, retain_graph=True, allow_unused=True, materialize_grads=True
    )[0][0]
    return row


def unscaled(observation: Observation, model: Replay) -> tuple[Tensors, float]:
    """The observed gradient, of one example without the factor that its last layer tells.

    Raises:
        CannotAttack: as ``observed_gradient``.
    """
    gradient = observed_gradient(observation)
    if observation.knowledge.num_examples != 1 or observation.knowledge.defense:
        return gradient, 1.0
    try:
        head = find_head(model.network)
        device = next(iter(model.parameters.values())).device
        of_head = {
            k: gradient[k].to(device) for k in (head.weight, str(head.bias)) if k in gradient
        }
        factor = single_target(model.network, model.task, of_head, head).trusted
    except CannotAttack:  # without a last layer to read, nothing speaks for a factor
        return gradient, 1.0
    return {name: value / factor for name, value in gradient.items()}, factor


def fitted_factor(gradient: Tensors, observed: Tensors) -> float:
    """The factor of a gradient that is nearest to the observed one."""
    gradient = {name: value.detach() for name, value in gradient.items()}
    both = sum(float((value * observed[name]).sum()) for name, value in gradient.items())
    return both / max(sum(float(value.square().sum()) for value in gradient.values()), 1e-300)


def relative_error(gradient: Tensors, observed: Tensors) -> float:
    """``||gradient - observed|| / ||observed||`` over all tensors as one vector."""
    gap = torch.stack([(gradient[name] - observed[name]).norm() for name in gradient]).norm()
    whole = torch.stack([observed[name].norm() for name in gradient]).norm()
    return float((gap / whole).detach())
