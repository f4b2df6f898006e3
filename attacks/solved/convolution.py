"""One convolution and its activation as linear equations for the input, given one gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_DIGITS = 0.01  # scale of the extra weight of outputs near 0, which are known to more digits
_REFINEMENTS = 3  # steps of iterative refinement after the normal equations
_RIDGES = (1e-13, 1e-9, 1e-5, 1e-1)  # shares of the mean diagonal, tried in this order


@dataclass(frozen=True, slots=True)
class Activation:
    """An invertible activation.

    Attributes:
        range: the lowest and the highest float64 that the inverse takes.
        slope: its derivative, as a function of its output.
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
        name: of the convolution's module.
        weight: ``(out channel, in channel * kernel)``.
        bias: ``(out channel,)``.
        patches: where in the input each weight finds its value at each position, ``(position, in
            channel * kernel)``; the values count from 1, and 0 is padding.
        channels: of the input.
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
        cls, name: str, layer: nn.Conv2d, activation: Activation, shape: tuple[int, ...]
    ) -> Convolution:
        """A layer in float64 without groups, for inputs ``(channel, height, width)``."""
        assert not isinstance(layer.padding, str)
        weight, size = layer.weight.detach().flatten(1), torch.Size(shape).numel()
        places = torch.arange(1, size + 1, dtype=weight.dtype, device=weight.device)
        patches = F.unfold(
            places.view(1, *shape), layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return cls(name, weight, bias, activation, patches[0].T.long(), shape[0], size)

    @property
    def equations(self) -> int:
        """Of the output and of the weight gradient, for the values of the input."""
        return len(self.patches) * len(self.weight) + self.weight.numel()

    def invert(
        self, output: Tensor, upstream: Tensor, gradient: Tensor, floor: float
    ) -> tuple[Tensor, Tensor]:
        """The input ``(size,)`` and the loss gradient there.

        With the patch ``x_p`` of the input at position ``p``, the output says ``weight x_p =
        activation^-1(output_p) - bias``, and the gradient ``sum_p delta_op x_p = gradient_o``.
        Equations of the first kind are weighted by the activation's slope, since its inverse
        divides errors by that, and those of the second divided by the length of ``delta_o``: then
        all are off by about as much. An output near 0, with digits of its own, keeps some weight.

        Args:
            output: ``(out channel * position,)``.
            upstream: the loss gradient there.
            gradient: of the weight, in its shape.
            floor: outputs smaller than that are no better known than this one.
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
        """Least squares of ``scale (x weight^T) = output`` and ``delta x = gradient``.

        By the normal equations; what they lose in accuracy, steps of refinement with the residual
        of the equations themselves bring back.
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
        """The matrix ``(size, size)`` of the normal equations."""
        places = self.patches[:, :, None] * (self.size + 1) + self.patches[:, None]
        products = torch.einsum("po,oi,oj->pij", scale.square(), self.weight, self.weight)
        matrix = scale.new_zeros((self.size + 1) ** 2)
        matrix.index_add_(0, places.flatten(), products.flatten())
        matrix = matrix.view(self.size + 1, -1)[1:, 1:].contiguous()
        # The gradient's equations are the same for each channel of the input, and for it alone.
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
        """The Cholesky factor of the matrix with as small a ridge as will do."""
        mean = matrix.diagonal().mean()
        for ridge in _RIDGES:
            matrix.diagonal().add_(ridge * mean)
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if not failed:
                break
        return factor

    def _spread(self, patches: Tensor) -> Tensor:
        """Sum what belongs to each value of the input: the transpose of taking patches."""
        total = patches.new_zeros(self.size + 1)
        return total.index_add_(0, self.patches.flatten(), patches.flatten())[1:]
