"""The layers of a network that is a plain sequence, as equations for their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.observed.first_linear import ShownInput, shown_input
from attacks.observed.labels import Head, find_head
from attacks.observed.replay import Replay
from attacks.observed.seen_input import SeenInput, check_plain, seen_input
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)
_SEARCH = "Choose another model, or an attack that searches."
_CLOSED_FORM_FLOOR = 1e-6
"""Outputs smaller than this are lost in the errors of the layers above."""
_CLOSED_FORM_VALUES = 16_384
"""Most values of a layer's input; the dense equations of that many take 2 GB of float64."""


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
        flat = isinstance(call.part, nn.Linear) and call.input.dim() == 2
        if flat and call.part.bias is not None:
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

    def shown(self, gradient: Tensors) -> ShownInput:
        """What the first layer, if that is linear, else the last one shows of its input."""
        last = self.first or self.head
        return shown_input(gradient[last.weight], gradient[str(last.bias)])

    def _given(self, model: Replay, gradient: Tensors) -> Tensor:
        if self.first:
            return self.shown(gradient).values
        values = self.shown(gradient).values.nan_to_num(0.0)
        slope = model.network.get_parameter(self.head.weight).T @ gradient[str(self.head.bias)]
        for layer in reversed(self.layers):
            # The linear layer recovers even tiny values to full precision, so no floor is needed.
            floor = 0.0 if layer is self.layers[-1] else _CLOSED_FORM_FLOOR
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

    def note(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(part: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            pair = [v if isinstance(v, Tensor) else Tensor() for v in (*inputs[:1], output)]
            calls.append(_Call(name, part, pair[0], pair[-1]))

        return hook

    weight = next(network.parameters())
    pixels = torch.rand(1, *task.spec.input_shape, generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels.to(weight), task.any_labels(1).to(weight.device))
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
    return _with_functions(
        [*(c for c in calls[:last] if not _equal(c.input, c.output)), calls[last]]
    )


def _with_functions(calls: list[_Call]) -> list[_Call]:
    """With the activations that ``forward`` calls as functions, told by what comes after them."""
    whole = calls[:1]
    for before, after in pairwise(calls):
        if not _equal(before.output, after.input):
            whole += [
                _Call(before.name, kind(), before.output, after.input)
                for kind in ACTIVATIONS
                if _equal(kind()(before.output), after.input)
            ]
        whole.append(after)
    return whole


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.numel() > 0 and torch.equal(first.flatten(), second.flatten())


def _convolutions(network: str, calls: list[_Call]) -> list[Convolution]:
    wanted: list[tuple[type, ...]] = [_LAYERS, tuple(ACTIVATIONS)]
    for place, call in enumerate(calls):
        last = call is calls[-1] and place % 2 == 0
        if place % 2 and isinstance(call.part, _LAYERS):
            raise CannotAttack(
                f"between {calls[place - 1].name!r} and {call.name!r} stands no "
                f"{' or '.join(kind.__name__ for kind in ACTIVATIONS)} (a ReLU, also as a "
                "function, is none), and only such an activation can be inverted",
                _SEARCH,
            )
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
    if not solved.size <= min(solved.equations, _CLOSED_FORM_VALUES):
        raise CannotAttack(
            f"{call.name!r} gives {solved.equations} equations for the {solved.size} values of its "
            f"input; at least as many equations as values are needed, and at most "
            f"{_CLOSED_FORM_VALUES} values can be solved for",
            "Choose smaller images, a wider layer, or an attack that searches.",
        )
    return solved


_DIGITS = 0.01  # scale of the extra weight of outputs near 0, which are known to more digits
_REFINEMENTS = 3  # steps of iterative refinement after the normal equations
_RIDGES = (1e-13, 1e-9, 1e-5, 1e-1)  # shares of the mean diagonal, tried in this order


@dataclass(frozen=True, slots=True)
class Activation:
    """An invertible activation.

    Attributes:
        range: the smallest and the largest float64 in the domain of the inverse.
        slope: derivative of the activation, as a function of its output.
    """

    range: tuple[float, float]
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Sigmoid: Activation((1e-300, 1 - 1e-16), torch.logit, lambda output: output * (1 - output)),
    nn.Tanh: Activation((1e-16 - 1, 1 - 1e-16), torch.atanh, lambda output: 1 - output.square()),
}


@dataclass(frozen=True, slots=True)
class Convolution:
    """``output = activation(weight * input + bias)`` of one image, in float64.

    Attributes:
        name: name of the convolution's module.
        weight: ``(out channel, in channel * kernel)``.
        bias: ``(out channel,)``.
        patches: index of the input value under each weight at each position, int64 ``(position, in
            channel * kernel)``; indices count from 1, and 0 stands for padding.
        channels: number of channels of the input.
        size: number of values in the input.
    """

    name: str
    weight: Tensor
    bias: Tensor
    activation: Activation
    patches: Tensor
    channels: int
    size: int

    @classmethod
    def of(
        cls,
        name: str,
        layer: nn.Conv1d | nn.Conv2d | nn.Linear,
        activation: Activation,
        shape: tuple[int, ...],
    ) -> Convolution:
        """The equations of a float64 layer without groups, for inputs of this shape.

        ``shape`` is ``(channel, height, width)``, ``(channel, time)`` or, of a linear layer, which
        is a convolution at a single place, ``(value,)``.
        """
        weight, size = layer.weight.detach().flatten(1), torch.Size(shape).numel()
        places = torch.arange(1, size + 1, dtype=weight.dtype, device=weight.device)
        if isinstance(layer, nn.Linear):
            patches = places[:, None]
        else:
            patches = _unfold(places.view(shape), layer)
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return cls(name, weight, bias, activation, patches.T.long(), shape[0], size)

    @property
    def equations(self) -> int:
        """Number of equations that the output and the weight gradient give for the input."""
        return len(self.patches) * len(self.weight) + self.weight.numel()

    def invert(
        self, output: Tensor, upstream: Tensor, gradient: Tensor, floor: float
    ) -> tuple[Tensor, Tensor]:
        """The input ``(size,)`` and the loss gradient with respect to it.

        These are the weight and gradient constraints of R-GAP (Zhu and Blaschko 2021).
        Let ``x_p`` be the patch of the input at position ``p``, ``y = W x_p + b`` the convolution
        and ``a = f(y)`` its activation, with ``delta_op = dL/dy_op = dL/da_op f'(y_op)``.
        Weight constraint: ``W x_p = f^-1(a_p) - b`` for each position ``p``.
        Gradient constraint: ``sum_p delta_op x_p = dL/dW_o`` for each output channel ``o``.
        The inverse ``f^-1`` divides errors by ``f'``, so the first kind is weighted by ``f'``; the
        second is divided by ``||delta_o||``. All equations then have errors of similar size.

        Args:
            output: ``a``, ``(out channel * position,)``.
            upstream: ``dL/da``, of the same shape.
            gradient: ``dL/dW``, in the shape of the weight.
            floor: absolute error of the outputs; smaller ones get no more weight than this one.
        """
        act = self.activation
        output = output.view(len(self.weight), -1).clamp(*act.range)
        slope = act.slope(output)
        delta = upstream.view_as(output) * slope
        trust = slope * (1 + _DIGITS / (output.abs() + floor))
        length = delta.norm(dim=1, keepdim=True).clamp(min=torch.finfo(delta.dtype).tiny)
        values = self._solve(
            trust.T,
            delta / length,
            ((act.inverse(output) - self.bias[:, None]) * trust).T,
            gradient.flatten(1) / length,
        )
        return values, self._spread(delta.T @ self.weight)

    def _solve(self, scale: Tensor, delta: Tensor, output: Tensor, gradient: Tensor) -> Tensor:
        """Least-squares ``x`` of ``scale (x weight^T) = output`` and ``delta x = gradient``.

        The normal equations ``A^T A x = A^T b`` square the condition number. Each refinement step
        solves them again for the residual ``b - A x`` of the equations themselves, which restores
        the lost digits.

        Args:
            scale: weights of the first kind, ``(position, out channel)``.
            delta: ``(out channel, position)``.
            output: right-hand side of the first kind, already scaled, as ``scale``.
            gradient: right-hand side of the second, ``(out channel, in channel * kernel)``.
        """
        factor = self._factor(self._normal(scale, delta))
        values = output.new_zeros(self.size)
        for _ in range(_REFINEMENTS):
            x = F.pad(values, (1, 0))[self.patches]
            rest = output - scale * (x @ self.weight.T), gradient - delta @ x
            right = self._spread((scale * rest[0]) @ self.weight + delta.T @ rest[1])
            values = values + torch.cholesky_solve(right[:, None], factor)[:, 0]
        return values

    def _normal(self, scale: Tensor, delta: Tensor) -> Tensor:
        """The matrix ``A^T A (size, size)`` of the normal equations.

        The first kind contributes ``sum_po scale_po^2 w_oi w_oj`` to the two inputs under weights
        ``i`` and ``j`` at position ``p``. The second couples inputs of the same channel alone, and
        equally in every channel: it adds one block ``rows rows^T`` to each diagonal block. Row and
        column 0 collect the padding and are dropped.
        """
        places = self.patches[:, :, None] * (self.size + 1) + self.patches[:, None]
        products = torch.einsum("po,oi,oj->pij", scale.square(), self.weight, self.weight)
        matrix = scale.new_zeros((self.size + 1) ** 2)
        matrix.index_add_(0, places.flatten(), products.flatten())
        matrix = matrix.view(self.size + 1, -1)[1:, 1:].contiguous()
        kernel, area = self.patches.shape[1] // self.channels, self.size // self.channels
        rows = delta.new_zeros(kernel, area + 1, len(delta))
        weights = torch.arange(kernel, device=delta.device)[:, None]
        rows[weights, self.patches[:, :kernel].T] = delta.T
        rows = rows[:, 1:].transpose(0, 1).flatten(1)
        block = rows @ rows.T
        blocks = matrix.view(self.channels, area, self.channels, area).diagonal(dim1=0, dim2=2)
        blocks += block[:, :, None]
        return matrix

    def _factor(self, matrix: Tensor) -> Tensor:
        """The Cholesky factor with the smallest ridge of ``_RIDGES`` for which it exists."""
        mean = matrix.diagonal().mean()
        for ridge in _RIDGES:
            matrix.diagonal().add_(ridge * mean)
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if not failed:
                break
        return factor

    def _spread(self, patches: Tensor) -> Tensor:
        """Sum of the patch entries of each input value: the transpose of taking patches."""
        total = patches.new_zeros(self.size + 1)
        return total.index_add_(0, self.patches.flatten(), patches.flatten())[1:]


def _unfold(places: Tensor, layer: nn.Conv1d | nn.Conv2d) -> Tensor:
    """What each weight meets at each position, ``(in channel * kernel, position)``."""
    assert not isinstance(layer.padding, str)
    line = places.dim() == 2  # (channel, time): an image of one line
    kernel, dilation, padding, stride = (
        (edge, *sizes) if line else sizes
        for edge, sizes in (
            (1, layer.kernel_size),
            (1, layer.dilation),
            (0, layer.padding),
            (1, layer.stride),
        )
    )
    images = places[None, :, None] if line else places[None]
    patches: Tensor = F.unfold(images, kernel, dilation, padding, stride)[0]
    return patches
