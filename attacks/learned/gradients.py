"""The gradients of many groups of examples, to simulate updates from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import embedding, pad

from attacks.observed.factored import Factored
from attacks.observed.factors import Products, Vectors
from attacks.observed.replay import Replay
from fedsim.types import Batch, Tensors

_AT_ONCE = 64
"""Most updates that one ``vmap`` processes at a time."""
_BYTES = 64 << 20
"""Most bytes of gradients that one ``vmap`` produces at a time."""


@dataclass(frozen=True)
class Gradients:
    """Gives the gradients of groups of examples.

    Attributes:
        model: whose gradients, with respect to which parameters.
        factored: a copy of a text classifier, all of whose gradients follow from one pass over
            many texts; None if there is no such copy.
    """

    model: Replay
    factored: Factored | None = None

    @classmethod
    def of(cls, model: Replay) -> Gradients:
        """Those of a model."""
        if model.task.modality != "text" or not model.task.spec.num_classes:
            return cls(model)  # the mean over tokens of a language model is no mean over lanes
        factored = Factored(replace(model, network=copy.deepcopy(model.network)))
        whole = {name for group in factored.layout for name in group} == model.parameters.keys()
        return cls(model, factored if whole else None)

    def __call__(self, batch: Batch, size: int) -> Mapping[str, Tensor]:
        """The gradient of each ``size`` consecutive examples, ``(group, *shape)``."""
        if self.factored is None:
            return group_gradients(self.model, batch, size)
        words = cast(Any, self.factored.network).get_input_embeddings().weight
        guess = embedding(batch.inputs, words).unflatten(0, (-1, size))
        with torch.enable_grad():
            groups = self.factored(guess, batch, create_graph=False)
        parts = {name: (group, i) for group in groups for i, name in enumerate(group.names)}
        shapes = {name: value.shape for name, value in self.model.parameters.items()}
        return _Formed(shapes, parts)


@dataclass(frozen=True)
class _Formed(Mapping[str, Tensor]):
    """Gradients that are formed when they are asked for: together they need much memory."""

    shapes: dict[str, torch.Size]
    parts: dict[str, tuple[Products | Vectors, int]]

    def __getitem__(self, name: str) -> Tensor:
        group, layer = self.parts[name]
        if isinstance(group, Products):
            return group.left[layer].mT @ group.right[layer]
        values, shape = group.values[layer], self.shapes[name]
        filled = pad(values, (0, shape.numel() - values.shape[1]))
        return filled.view(-1, *shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def group_gradients(model: Replay, batch: Batch, size: int) -> Tensors:
    """The gradient of each ``size`` consecutive examples, ``(group, *shape)``, by ``vmap``.

    Groups are processed one by one if gradients are large, which is as fast and takes less memory,
    or if the network branches on its input's values, as for the padding masks of BERT.
    """
    chunk = _BYTES // (4 * size * sum(value.numel() for value in model.parameters.values()))
    if chunk < 2:
        return looped_gradients(model, batch, size)
    mask = batch.inputs if batch.mask is None else batch.mask

    def gradient(inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensors:
        return model.pure_gradient(Batch(inputs, labels, None if batch.mask is None else mask))

    groups = (part.unflatten(0, (-1, size)) for part in (batch.inputs, batch.labels, mask))
    try:
        gradients: Tensors = vmap(gradient, chunk_size=min(chunk, _AT_ONCE))(*groups)
    except RuntimeError:
        return looped_gradients(model, batch, size)
    return {name: value.detach() for name, value in gradients.items()}


@torch.enable_grad()
def looped_gradients(model: Replay, batch: Batch, size: int = 1) -> Tensors:
    """``group_gradients`` one by one: the reference for its results and its speed."""
    starts = range(0, len(batch), size)
    gradients = {
        k: value.new_empty(len(starts), *value.shape) for k, value in model.parameters.items()
    }
    for number, start in enumerate(starts):
        loss = model.task.loss(model.network, _trimmed(batch[start : start + size]))
        single = torch.autograd.grad(
            loss, list(model.parameters.values()), allow_unused=True, materialize_grads=True
        )
        for stored, gradient in zip(gradients.values(), single, strict=True):
            stored[number] = gradient
    return gradients


def _trimmed(batch: Batch) -> Batch:
    """The batch without the places that are padding in all its texts."""
    if batch.mask is None:
        return batch
    longest = int(batch.mask.sum(1).max())
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, :longest]
    return Batch(batch.inputs[:, :longest], labels, batch.mask[:, :longest])
