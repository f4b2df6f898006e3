"""Updates as the features of a learned inverter: their coordinates, hashed, or slopes."""

from __future__ import annotations

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
"""Updates that one ``vmap`` works on at once."""
_BYTES = 64 << 20
"""Bytes of gradients that it makes at once."""


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the tensors that a client sends, one after another.

    Attributes:
        shapes: of the tensors, in the model's order.
    """

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, model: Replay) -> Coordinates:
        """Those of the parameters that the client sends."""
        return cls({name: value.shape for name, value in model.parameters.items()})

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(shape.numel() for shape in self.shapes.values())

    def flatten(self, update: Tensors) -> Tensor:
        """``(..., coordinate)`` of tensors ``(..., *shape)``."""
        parts = [update[name].flatten(-len(shape)) for name, shape in self.shapes.items()]
        return torch.cat(parts, -1)

    def unflatten(self, coordinates: Tensor) -> Tensors:
        """The inverse of ``flatten``, as views."""
        parts = coordinates.split([shape.numel() for shape in self.shapes.values()], -1)
        return {
            name: part.unflatten(-1, shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Hashed:
    """Sums of coordinates (Wu et al. 2022), which adds those of one bin up without random signs.

    Attributes:
        width: number of features.
        index: the bin of each coordinate, int64; None where each has its own.
        classes: features, at the end, that tell the class: none here.
    """

    width: int
    index: Tensor | None = None
    classes: int = 0

    @classmethod
    def of(cls, coordinates: int, index: Tensor | None) -> Hashed:
        """The bins of so many coordinates."""
        return cls(coordinates if index is None else int(index.max()) + 1, index)

    def linear(self, coordinates: Tensor) -> Tensor:
        """The sums ``(update, bin)`` of ``(update, coordinate)``."""
        if self.index is None:
            return coordinates
        sums = coordinates.new_zeros(len(coordinates), self.width)
        return sums.index_add_(1, self.index, coordinates)

    def sizes(self, device: torch.device) -> Tensor:
        """How many coordinates each bin holds, float32."""
        if self.index is None:
            return torch.ones(self.width, device=device)
        return self.index.bincount(minlength=self.width).float()

    def finish(self, linear: Tensor) -> Tensor:
        """The features, which are the sums themselves."""
        return linear


def draw_bins(coordinates: int, share: float, rng: torch.Generator) -> Tensor:
    """A bin for each coordinate, int64, of ``share`` times as many, none of which is empty."""
    drawn = torch.randint(max(1, int(share * coordinates)), (coordinates,), generator=rng)
    index: Tensor = drawn.unique(return_inverse=True)[1]
    return index


@dataclass(frozen=True)
class Slopes:
    """What one step of gradient matching makes of the update of a single image.

    The label is where the last bias gradient is lowest (iDLG, Zhao et al. 2020). The slope at the
    ``reference`` of the inner product of that label's gradient with the update has the size of the
    image. Where the gradient were linear in the image and the noise Gaussian it would say all that
    the update says; and it looks alike whatever the label is, as coordinates do not.
    With it come the last layer's bias gradient and its input, and the label as 0 and 1.

    Attributes:
        model: the broadcast model and the parameters sent, those of ``head`` among them.
        reference: an image ``(channel, height, width)``, such as the mean.
    """

    model: Replay
    coordinates: Coordinates
    head: Head
    reference: Tensor

    @property
    def classes(self) -> int:
        """Number of classes; as many features, the last ones, tell the label."""
        return self.coordinates.shapes[self.head.weight][0]

    @property
    def width(self) -> int:
        """Number of features."""
        return (
            self.reference.numel() + sum(self.coordinates.shapes[self.head.weight]) + self.classes
        )

    def linear(self, coordinates: Tensor) -> Tensor:
        """The coordinates themselves."""
        return coordinates

    def sizes(self, device: torch.device) -> Tensor:
        """One coordinate each, float32."""
        return torch.ones(self.coordinates.count, device=device)

    def finish(self, linear: Tensor) -> Tensor:
        """The features ``(update, feature)``."""
        update = self.coordinates.unflatten(linear)
        weight, bias = update[self.head.weight], update[str(self.head.bias)]
        labels = bias.argmin(1)
        slopes = vmap(self._slope, chunk_size=_AT_ONCE)(update, labels).detach()
        known = one_hot(labels, self.classes)
        return torch.cat([slopes, bias, head_input(weight, bias), known.to(bias)], 1)

    def _slope(self, update: Tensors, label: Tensor) -> Tensor:
        def gradient(image: Tensor) -> Tensors:
            return self.model.pure_gradient(Batch(image[None], label[None]))

        pull = vjp(gradient, self.reference)[1]
        slope: Tensor = pull(update)[0]
        return slope.flatten()


Features: TypeAlias = Hashed | Slopes


def head_input(weight: Tensor, bias: Tensor) -> Tensor:
    """What a linear layer was given: ``(update, input)`` of its gradients; 0 where all vanish.

    Of ``weight (update, output, input) = bias (update, output) x input`` the least-squares input.
    """
    energy = bias.square().sum(1, keepdim=True)
    projected = torch.einsum("uo,uoi->ui", bias, weight)
    return torch.where(energy > 0, projected / energy.where(energy > 0, 1), 0)


def per_sample_gradients(model: Replay, batch: Batch) -> Tensors:
    """The gradient of each example, ``(example, *shape)``."""
    return group_gradients(model, batch, 1)


def group_gradients(model: Replay, batch: Batch, size: int) -> Tensors:
    """The gradient of each ``size`` examples in a row, ``(group, *shape)``, by ``vmap``.

    One after another where gradients are large, which is no slower and takes less memory, or where
    the network looks at its input's values, as the padding masks of BERT do.
    """
    chunk = _BYTES // (4 * size * sum(value.numel() for value in model.parameters.values()))
    if chunk < 2:
        return looped_gradients(model, batch, size)
    mask = batch.inputs if batch.mask is None else batch.mask

    def gradient(inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensors:
        return model.pure_gradient(Batch(inputs, labels, None if batch.mask is None else mask))

    groups = (part.unflatten(0, (-1, size)) for part in (batch.inputs, batch.labels, mask))
    try:
        found: Tensors = vmap(gradient, chunk_size=min(chunk, _AT_ONCE))(*groups)
    except RuntimeError:
        return looped_gradients(model, batch, size)
    return {name: value.detach() for name, value in found.items()}


def looped_gradients(model: Replay, batch: Batch, size: int = 1) -> Tensors:
    """``group_gradients`` one after another: the oracle, and what ``vmap`` is timed against."""
    starts = range(0, len(batch), size)
    found = {k: value.new_empty(len(starts), *value.shape) for k, value in model.parameters.items()}
    for number, start in enumerate(starts):
        loss = model.task.loss(model.network, _trimmed(batch[start : start + size]))
        single = torch.autograd.grad(
            loss, list(model.parameters.values()), allow_unused=True, materialize_grads=True
        )
        for kept, own in zip(found.values(), single, strict=True):
            kept[number] = own
    return found


def _trimmed(batch: Batch) -> Batch:
    """The batch without the places that are padding in all of its texts."""
    if batch.mask is None:
        return batch
    longest = int(batch.mask.sum(1).max())
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, :longest]
    return Batch(batch.inputs[:, :longest], labels, batch.mask[:, :longest])
