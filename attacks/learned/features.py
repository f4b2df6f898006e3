"""Features of an update for a learned inverter: hashed coordinates, or slopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn.functional import one_hot

from attacks.observed.labels import Head
from attacks.observed.replay import Replay
from fedsim.types import Batch, Tensors

_AT_ONCE = 64
"""Most updates that one ``vmap`` processes at a time."""
_BYTES = 128 << 20
"""Most bytes of gradients in it: a slope of ResNet18 takes .29 CPU seconds at half of it, .29 here,
.34 at twice as much, .35 at eight updates."""


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the tensors that a client sends, one after another.

    Attributes:
        shapes: of the tensors, in the model's order.
    """

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, model: Replay) -> Coordinates:
        """The coordinates of the parameters that the client sends."""
        return cls({name: value.shape for name, value in model.parameters.items()})

    @property
    def count(self) -> int:
        """Total number of gradient coordinates."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Number of coordinates of each tensor."""
        return [shape.numel() for shape in self.shapes.values()]

    def flatten(self, update: Mapping[str, Tensor]) -> Tensor:
        """``(..., coordinate)`` of tensors ``(..., *shape)``."""
        parts = [update[name].flatten(-len(shape)) for name, shape in self.shapes.items()]
        return torch.cat(parts, -1)

    def unflatten(self, coordinates: Tensor) -> Tensors:
        """The inverse of ``flatten``, as views."""
        parts = coordinates.split(self.sizes, -1)
        return {
            name: part.unflatten(-1, shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Hashed:
    """Weighted sums of the coordinates in each bin, without random signs (Wu et al. 2022).

    Attributes:
        coordinates: of the updates.
        width: number of features.
        index: the bin of each coordinate, int64; None if each has its own.
        weights: of each tensor's coordinates in their bins, float32 ``(tensor,)``; None if all are
            1, as in the paper.
    """

    coordinates: Coordinates
    width: int
    index: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def of(
        cls, coordinates: Coordinates, index: Tensor | None, weights: Tensor | None = None
    ) -> Hashed:
        """The features by these bins."""
        width = coordinates.count if index is None else int(index.max()) + 1
        return cls(coordinates, width, index, weights)

    def linear(self, update: Mapping[str, Tensor]) -> Tensor:
        """The sums ``(update, bin)`` of tensors ``(update, *shape)``."""
        if self.index is None:
            return self.coordinates.flatten(update)
        bins = self.index.split(self.coordinates.sizes)
        sums: Tensor | None = None
        for name, index, weight in zip(self.coordinates.shapes, bins, self._weights(), strict=True):
            values = update[name].flatten(1)
            binned = values.new_zeros(len(values), self.width).index_add_(1, index, values)
            # Weights act on the sums: there are fewer, and index_add_ is slow with an alpha.
            sums = binned.mul_(weight) if sums is None else sums.add_(binned, alpha=weight)
        assert sums is not None
        return sums

    def sizes(self, device: torch.device) -> Tensor:
        """Sum of the squared weights in each bin, float32."""
        if self.index is None:
            return torch.ones(self.width, device=device)
        bins = self.index.split(self.coordinates.sizes)
        counts = torch.stack([index.bincount(minlength=self.width) for index in bins])
        return torch.tensor(self._weights(), device=device).square() @ counts.float()

    def _weights(self) -> list[float]:
        if self.weights is None:
            return [1.0] * len(self.coordinates.shapes)
        listed: list[float] = self.weights.tolist()
        return listed

    def finish(self, linear: Tensor) -> Tensor:
        """The features, which are the sums themselves."""
        return linear


def draw_bins(coordinates: int, share: float, rng: torch.Generator) -> Tensor:
    """A random bin for each coordinate, int64; at most ``share * coordinates`` bins, none empty."""
    drawn = torch.randint(max(1, int(share * coordinates)), (coordinates,), generator=rng)
    index: Tensor = drawn.unique(return_inverse=True)[1]
    return index


def tensor_weights(updates: Tensor, coordinates: Coordinates, variance: float) -> Tensor:
    """One weight for each tensor, by which a tensor of small gradients counts as one of large ones.

    That is ``r / (r^2 + variance)``, with the root mean square ``r`` of the tensor's coordinates:
    one scale for all tensors, and under noise the matched filter.

    Args:
        updates: some, before the noise, ``(update, coordinate)``.
        coordinates: those of the updates.
        variance: of the noise in each coordinate.

    Returns:
        float32 ``(tensor,)``, in the order of the coordinates; 0 for a tensor that is always 0.
    """
    parts = coordinates.unflatten(updates).values()
    energy = torch.stack([part.square().mean() for part in parts])
    return (energy.sqrt() / (energy + variance)).nan_to_num(0, 0, 0)


@dataclass(frozen=True)
class Slopes:
    """The first step of gradient matching for the update of a single image.

    The label is the class with the lowest bias gradient of the last layer (iDLG, Zhao et al. 2020).
    The main feature is the derivative, at the image ``reference``, of the inner product between the
    gradient for that label and the update; it has the shape of the image. If the gradient were
    linear in the image and the noise Gaussian, it would be a sufficient statistic of the update.
    Unlike coordinates, it looks alike for all labels. The other features are the bias gradient and
    the input of the last layer, and the label as a one-hot vector.

    Attributes:
        model: the broadcast model and the parameters sent, which include those of ``head``.
        reference: an image ``(channel, height, width)``, such as the mean.
    """

    model: Replay
    coordinates: Coordinates
    head: Head
    reference: Tensor

    @property
    def classes(self) -> int:
        """Number of classes, which is the number of features at the end that encode the label."""
        return self.coordinates.shapes[self.head.weight][0]

    @property
    def width(self) -> int:
        """Number of features."""
        return (
            self.reference.numel() + sum(self.coordinates.shapes[self.head.weight]) + self.classes
        )

    def linear(self, update: Mapping[str, Tensor]) -> Tensor:
        """The coordinates ``(update, coordinate)`` of tensors ``(update, *shape)``."""
        return self.coordinates.flatten(update)

    def sizes(self, device: torch.device) -> Tensor:
        """One coordinate each, float32."""
        return torch.ones(self.coordinates.count, device=device)

    def finish(self, linear: Tensor) -> Tensor:
        """The features ``(update, feature)``."""
        update = self.coordinates.unflatten(linear)
        weight, bias = update[self.head.weight], update[str(self.head.bias)]
        labels = bias.argmin(1)
        chunk = max(1, min(_AT_ONCE, _BYTES // (4 * self.coordinates.count)))
        slopes = vmap(self._slope, chunk_size=chunk)(update, labels).detach()
        known = one_hot(labels, self.classes)
        return torch.cat([slopes, bias, head_input(weight, bias), known.to(bias)], 1)

    def _slope(self, update: Tensors, label: Tensor) -> Tensor:
        def gradient(image: Tensor) -> Tensors:
            return self.model.pure_gradient(Batch(image[None], label[None]))

        pull = vjp(gradient, self.reference)[1]
        slope: Tensor = pull(update)[0]
        return slope.flatten()


OfUpdate: TypeAlias = Hashed | Slopes


@dataclass(frozen=True)
class WithStatistics:
    """Features of an update behind those of the running statistics that came with it.

    Attributes:
        update: what the update's features are.
        statistics: number of the others, which no defense of the update changes.
    """

    update: OfUpdate
    statistics: int

    @property
    def width(self) -> int:
        """Number of features."""
        return self.statistics + self.update.width

    def linear(self, update: Mapping[str, Tensor]) -> Tensor:
        """Those of the update ``(update, feature)`` of tensors ``(update, *shape)``."""
        return self.update.linear(update)

    def sizes(self, device: torch.device) -> Tensor:
        """As for the update, float32; 0 for a statistic, which has no noise."""
        bins = self.update.sizes(device)
        return torch.cat([bins.new_zeros(self.statistics), bins])

    def finish(self, linear: Tensor) -> Tensor:
        """The features, of statistics and then of the update."""
        statistics, update = linear.tensor_split([self.statistics], 1)
        return torch.cat([statistics, self.update.finish(update)], 1)


Features: TypeAlias = OfUpdate | WithStatistics


def head_input(weight: Tensor, bias: Tensor) -> Tensor:
    """The input of a linear layer from its gradients, ``(update, input)``; 0 if they vanish.

    It is the least-squares solution of ``weight (update, output, input) = bias (update, output) x
    input (update, input)``.
    """
    energy = bias.square().sum(1, keepdim=True)
    projected = torch.einsum("uo,uoi->ui", bias, weight)
    return torch.where(energy > 0, projected / energy.where(energy > 0, 1), 0)
