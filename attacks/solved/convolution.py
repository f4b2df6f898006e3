"""One convolution and its activation as linear equations for the input of a single image."""

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
        # The gradient constraint: the same block for each channel of the input.
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
