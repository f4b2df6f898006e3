"""The layers of a network that is a plain sequence, as equations for their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from attacks.observed.labels import Head, find_head
from attacks.observed.replay import Replay
from attacks.observed.seen_input import SeenInput, check_plain, seen_input
from attacks.solved.convolution import ACTIVATIONS, Activation, Convolution
from attacks.solved.cuts import CUTS
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)
_SEARCH = "Choose another model, or an attack that searches."


@dataclass(frozen=True)
class Sequence:
    """How the gradient of one example yields what the first layer was given.

    Attributes:
        head: the last linear layer; what follows it is part of the loss.
        seen: what the first layer is given of an image.
        first: the first layer, if it is linear and has a bias, whose gradient alone yields its
            input whatever follows it; else None.
        layers: those below the head, empty if ``first`` is there.
    """

    head: Head
    seen: SeenInput
    first: Head | None
    layers: tuple[Convolution, ...]

    @classmethod
    def of(cls, network: nn.Module, task: Task) -> Sequence:
        """The layers that a network calls for an image.

        Raises:
            CannotAttack: they are no plain sequence of convolutions and linear layers, each with an
                invertible activation, and one linear layer at the end; or a layer does not
                determine its input.
        """
        head = find_head(network)
        calls = _trace(network, task, head)
        # What is before the first of these may do to pixels what a loader does.
        start = next((i for i, call in enumerate(calls) if isinstance(call.part, _LAYERS)), 0)
        for call in calls[: start + 1]:
            check_plain(network, call.name)
        calls, call = calls[start:], calls[start]
        entry = seen_input(network, task, call.name)
        if (
            isinstance(call.part, nn.Linear)
            and call.part.bias is not None
            and call.input.dim() == 2
        ):
            first = Head(call.name, *(_parameter(call.name, name) for name in ("weight", "bias")))
            return cls(head, entry, first, ())
        if head.bias is None:
            raise CannotAttack(
                f"{head.layer!r} has no bias, whose gradient sets the scale of what it was given",
                _SEARCH,
            )
        return cls(head, entry, None, tuple(_convolutions(type(network).__name__, calls)))

    @property
    def needed(self) -> list[str]:
        """The parameters whose gradients the solution takes."""
        below = [f"{layer.name}.weight" for layer in self.layers]
        last = self.first or self.head
        return [*dict.fromkeys((self.head.weight, last.weight, str(last.bias), *below))]

    def solve(self, model: Replay, gradient: Tensors) -> Tensor:
        """The image's pixels ``(value,)`` that solve each layer, from the last one back."""
        with torch.no_grad():
            return self.seen.image(self._given(model, gradient))

    def _given(self, model: Replay, gradient: Tensors) -> Tensor:
        last = self.first or self.head
        slopes = gradient[str(last.bias)]
        values = gradient[last.weight].T @ slopes / slopes.square().sum()
        slope = model.network.get_parameter(last.weight).T @ slopes
        for layer in reversed(self.layers):
            # The linear layer recovers even tiny values to full precision, so no floor is needed.
            floor = 0.0 if layer is self.layers[-1] else CUTS.closed_form_floor
            values, slope = layer.invert(values, slope, gradient[f"{layer.name}.weight"], floor)
        return values


def _parameter(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    part: nn.Module
    input: Tensor
    output: Tensor


def _trace(network: nn.Module, task: Task, head: Head) -> list[_Call]:
    """The layers that change something, in the order of the calls, up to the last linear one."""
    calls: list[_Call] = []
    nothing = torch.zeros(0)

    def note(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(part: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            pair = [v if isinstance(v, Tensor) else nothing for v in (*inputs[:1], output)]
            calls.append(_Call(name, part, pair[0], pair[-1]))

        return hook

    pixels = torch.rand(1, *task.spec.input_shape).to(next(network.parameters()))
    batch = Batch(pixels, task.any_labels(1).to(pixels.device))
    with ExitStack() as stack, torch.no_grad():
        for name, part in network.named_modules():
            if not list(part.children()):
                stack.callback(part.register_forward_hook(note(name)).remove)
        task.loss(network, batch)
    uses = Counter(call.name for call in calls if list(call.part.parameters()))
    if again := [name for name, times in uses.items() if times > 1]:
        raise CannotAttack(
            f"{again[0]!r} of {type(network).__name__} is called {uses[again[0]]} times in a pass, "
            "and its gradient is the sum over all calls",
            _SEARCH,
        )
    last = next((i for i, call in enumerate(calls) if call.name == head.layer), len(calls) - 1)
    # Dropout in eval mode, the identity and flattening leave all values as they are.
    changing = [call for call in calls[:last] if not _equal(call.input, call.output)]
    return [*changing, calls[last]]


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.numel() > 0 and torch.equal(first.flatten(), second.flatten())


def _convolutions(network: str, calls: list[_Call]) -> list[Convolution]:
    wanted: list[tuple[type, ...]] = [_LAYERS, tuple(ACTIVATIONS)]
    for place, call in enumerate(calls):
        last = call is calls[-1] and place % 2 == 0
        if not isinstance(call.part, nn.Linear if last else wanted[place % 2]):
            raise CannotAttack(
                f"{call.name!r} is {call.part}, and only convolutions, each followed by a "
                f"{' or '.join(kind.__name__ for kind in ACTIVATIONS)}, and a final linear layer "
                "can be solved",
                _SEARCH,
            )
    if not all(_equal(before.output, after.input) for before, after in pairwise(calls)):
        raise CannotAttack(f"{network} does more than call its layers in sequence", _SEARCH)
    return [
        _convolution(layer, ACTIVATIONS[type(then.part)])
        for layer, then in zip(calls[:-1:2], calls[1::2], strict=True)
    ]


def _convolution(call: _Call, activation: Activation) -> Convolution:
    layer = call.part
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
    if not isinstance(layer, nn.Linear) and (
        layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        raise CannotAttack(
            f"{call.name!r} has groups, or padding other than zeros of a fixed size: {layer}",
            _SEARCH,
        )
    solved = Convolution.of(call.name, layer, activation, tuple(call.input.shape[1:]))
    if not solved.size <= min(solved.equations, CUTS.closed_form_values):
        raise CannotAttack(
            f"{call.name!r} gives {solved.equations} equations for the {solved.size} values of its "
            f"input; at least as many equations as values are needed, and at most "
            f"{CUTS.closed_form_values} values can be solved for",
            "Choose smaller images, a wider layer, or an attack that searches.",
        )
    return solved
