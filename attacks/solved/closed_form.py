"""Exact inversion of a small convolutional network for one image, without any search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.labels import Head, find_head, infer_label
from attacks.observed.replay import Replay, observed_gradient, replay
from attacks.solved.convolution import ACTIVATIONS, Activation, Convolution
from attacks.solved.cuts import CUTS
from attacks.solved.estimate import Estimate, estimate
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class ClosedForm(Attack):
    """Recover one image by solving each layer's gradient equations, from the last layer back.

    This is R-GAP (Zhu and Blaschko 2021) for convolutions that are each followed by an invertible
    activation. The linear layer at the end yields its input as ``G_W^T g_b / ||g_b||^2``. Further
    back, the inverse activation yields the output of a convolution, and back-propagation yields the
    loss gradient at that output. Both the output and the weight gradient are linear in the input of
    the convolution, which is recovered by least squares.

    We differ from R-GAP in two things. It uses no biases and has to search for the scale of the
    gradient, which the bias gradient of the last layer provides here. And where noise, rounding,
    pruning, signs or clipping keep the solution from explaining the update, as their errors grow
    from layer to layer, the guess is the likeliest image under all equations at once and a Gaussian
    of the attacker's auxiliary images, or of natural images in general. How the update was
    distorted is read off the update, see ``attacks.observed.distortion``; a defense need not be
    declared. If the update is expected to tell next to nothing, the guess is the prior's mean.

    Confidence is ``certified`` if the gradient of the guess equals the observed one up to float32
    rounding. The objective is the relative error of that gradient.

    Attributes:
        tolerance: relative error of the guess's gradient that counts as float32 rounding.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-5

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Whether the layers can be inverted and each reply holds a single example."""
        what, counts = "examples", prospect.examples
        try:
            layers = convolutions(prospect.network, prospect.task.spec.input_shape)
        except CannotAttack as error:
            return Feasibility("red", what, counts, 1, error.reason)
        if missing := [one.name for one in layers if f"{one.name}.weight" not in prospect.sent]:
            return Feasibility("red", what, counts, 1, f"{missing[0]!r} is not sent")
        return prospect.judge(what, counts, 1)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The image that solves all layers, or the likeliest one where none does."""
        return _invert(observation, task, rng, job, self.tolerance)


def _invert(
    observation: Observation, task: Task, rng: torch.Generator, job: Job, tolerance: float
) -> Reconstruction:
    count = observation.knowledge.num_examples
    if count != 1:
        raise CannotAttack(
            f"it inverts the gradient of one image, and this is the mean of {count}",
            "Set federation.batch_size = 1, or choose another attack.",
        )
    model = replay(observation, task, job.device, torch.float64)
    layers = convolutions(model.network, task.spec.input_shape)
    gradient = {k: v.to(job.device) for k, v in observed_gradient(observation).items()}
    head = find_head(model.network)
    needed = [head.weight, str(head.bias), *(f"{layer.name}.weight" for layer in layers)]
    if absent := [name for name in needed if name not in gradient]:
        raise CannotAttack(
            f"the client did not send {absent[0]!r} (it is frozen or does not exist), and each "
            "layer is inverted by its own gradient",
            "Choose an attack that searches.",
        )
    if not all(value.isfinite().all() for value in gradient.values()) or not any(
        value.any() for value in gradient.values()
    ):
        raise CannotAttack(
            "the equations have no finite solution: its update is zero or not finite",
            "Choose an attack that searches.",
        )
    values = _solve(model, layers, gradient, head)
    if values.isfinite().all():
        image = values.view(1, *task.spec.input_shape).clamp(0, 1)
        labels = torch.tensor([infer_label(gradient, head)], device=job.device)
        solved = Batch(image.float(), labels)
        error = relative_error(model.gradient(Batch(solved.inputs.double(), labels)), gradient)
        if error < tolerance:
            return Reconstruction(
                solved, objective=error, steps=len(layers), confidence=("certified",)
            )
    else:
        solved = None
    return _estimated(estimate(observation, task, head, rng, job), solved, gradient)


def _solve(model: Replay, layers: list[Convolution], gradient: Tensors, head: Head) -> Tensor:
    """The input ``(value,)`` that solves each layer, from the last one back."""
    with torch.no_grad():
        logits = gradient[str(head.bias)]
        values = gradient[head.weight].T @ logits / logits.square().sum()
        slope = model.network.get_parameter(head.weight).T @ logits
        for layer in reversed(layers):
            # The linear layer recovers even tiny values to full precision, so no floor is needed.
            floor = 0.0 if layer is layers[-1] else CUTS.closed_form_floor
            values, slope = layer.invert(values, slope, gradient[f"{layer.name}.weight"], floor)
    return values


def _estimated(found: Estimate, solved: Batch | None, gradient: Tensors) -> Reconstruction:
    """The likelier of the estimate and the layers' solution, or the prior's mean."""
    best, model = found.posterior, found.estimator
    image, label, note = best.image, best.label, ""
    if not found.informed:
        image = found.prior.mean
        note = "the update is expected to tell next to nothing: the prior's mean is guessed."
    elif solved is not None:
        other, its = solved.inputs[0].to(image), int(solved.labels)
        if model.score(other, its, 1.0) < model.score(image, label, best.scale):
            image, label = other, its
    guess = Batch(image[None].clamp(0, 1).float(), torch.tensor([label], device=image.device))
    again = model.exact.gradient(Batch(guess.inputs.double(), guess.labels))
    return Reconstruction(
        guess,
        objective=relative_error(again, gradient),
        steps=best.steps,
        confidence=("guess",),
        note=note,
    )


def convolutions(network: nn.Module, shape: tuple[int, ...]) -> list[Convolution]:
    """The convolutions below the linear layer, for images ``(channel, height, width)``.

    Raises:
        CannotAttack: the network is not a plain sequence of convolutions, each with an invertible
            activation, and one linear layer at the end; or a layer does not determine its input.
    """
    calls, result = _trace(network, torch.rand(1, *shape).to(next(network.parameters())))
    wanted: list[type | tuple[type, ...]] = [nn.Conv2d, tuple(ACTIVATIONS)]
    for place, call in enumerate(calls):
        last = call is calls[-1] and place % 2 == 0
        if not isinstance(call.part, nn.Linear if last else wanted[place % 2]):
            raise CannotAttack(
                f"{call.name!r} is {call.part}, and only convolutions, each followed by a "
                f"{' or '.join(kind.__name__ for kind in ACTIVATIONS)}, and a final linear layer "
                "can be inverted",
                "Choose another model, or an attack that searches.",
            )
    outputs, inputs = [call.output for call in calls], [call.input for call in calls[1:]]
    if not all(
        torch.equal(before.flatten(), after.flatten())
        for before, after in zip(outputs, [*inputs, result], strict=True)
    ):
        raise CannotAttack(
            f"{type(network).__name__} does more than call its layers in sequence",
            "Choose another model, or an attack that searches.",
        )
    return [
        _convolution(call.name, call.part, ACTIVATIONS[type(then.part)], call.input.shape[1:])
        for call, then in zip(calls[:-1:2], calls[1::2], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    part: nn.Module
    input: Tensor
    output: Tensor


@torch.no_grad()
def _trace(network: nn.Module, images: Tensor) -> tuple[list[_Call], Tensor]:
    """Input and output of each layer, in the order of the calls, and the logits."""
    calls: list[_Call] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda part, inputs, output: calls.append(_Call(name, part, inputs[0], output))

    with ExitStack() as stack:
        for name, part in network.named_modules():
            if not list(part.children()) and not isinstance(part, nn.Flatten):
                stack.callback(part.register_forward_hook(note(name)).remove)
        return calls, network(images)


def _convolution(
    name: str, layer: nn.Module, activation: Activation, shape: tuple[int, ...]
) -> Convolution:
    assert isinstance(layer, nn.Conv2d)
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise CannotAttack(
            f"{name!r} has groups, or padding other than zeros of a fixed size: {layer}",
            "Choose another model, or an attack that searches.",
        )
    found = Convolution.of(name, layer, activation, shape)
    if not found.size <= min(found.equations, CUTS.closed_form_values):
        raise CannotAttack(
            f"{name!r} gives {found.equations} equations for the {found.size} values of its "
            f"input; at least as many equations as values are needed, and at most "
            f"{CUTS.closed_form_values} values can be solved for",
            "Choose smaller images, a wider layer, or an attack that searches.",
        )
    return found


def relative_error(gradient: Tensors, observed: Tensors) -> float:
    """``||gradient - observed|| / ||observed||`` over all tensors as one vector."""
    gap = torch.stack([(gradient[name] - observed[name]).norm() for name in gradient]).norm()
    whole = torch.stack([observed[name].norm() for name in gradient]).norm()
    return float((gap / whole).detach())
