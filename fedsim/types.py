"""Basic data types: named tensors, batches of examples, and rows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsim.columns import Column

Tensors: TypeAlias = dict[str, Tensor]
"""Parameter or buffer name -> tensor, in the order of the model."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded examples with their labels, as a model takes them.

    Attributes:
        inputs: images float32 ``(batch, channel, height, width)`` in [0, 1], or token ids int64
            ``(batch, token)``.
        labels: classes int64 ``(batch,)``, soft classes float32 ``(batch, class)``, or token
            targets int64 ``(batch, token)``, -100 where nothing is predicted.
        mask: int64 ``(batch, token)``, 1 for real tokens and 0 for padding; None for images.
        types: int64 ``(batch, token)``, which sentence of a pair each token is of; None where all
            have the type 0, and for images.

    Example:
        Two texts of three and two tokens:

        >>> import torch
        >>> from fedsim.types import Batch
        >>> ids = torch.tensor([[5, 8, 2], [7, 2, 0]])
        >>> batch = Batch(ids, torch.tensor([0, 1]), mask=torch.tensor([[1, 1, 1], [1, 1, 0]]))
        >>> len(batch), batch[1].inputs.tolist()
        (2, [[7, 2, 0]])
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None
    types: Tensor | None = None

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: int | slice | list[int] | Tensor) -> Batch:
        rows = slice(index, index + 1) if isinstance(index, int) else index
        mask = None if self.mask is None else self.mask[rows]
        types = None if self.types is None else self.types[rows]
        return Batch(self.inputs[rows], self.labels[rows], mask, types)

    def to(self, device: torch.device | str) -> Batch:
        """Copy of the batch on another device."""
        inputs, labels = self.inputs.to(device), self.labels.to(device)
        mask = None if self.mask is None else self.mask.to(device)
        types = None if self.types is None else self.types.to(device)
        return Batch(inputs, labels, mask, types)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a data set before a task encodes them.

    Attributes:
        inputs: images uint8 ``(row, channel, height, width)``, rows of a table float32 in [0, 1]
            ``(row, input, 1, 1)``, or texts.
        labels: classes int64 ``(row,)``; zeros if the data set has none.
        numbers: row numbers in the split of the data set; all sentences of a text share its number.
        class_names: names of the classes; empty if the data set has none.
        columns: of a table, else empty.
    """

    inputs: Tensor | tuple[str, ...]
    labels: Tensor
    numbers: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, positions: Sequence[int]) -> Rows:
        """The rows at ``positions``, in that order."""
        index = torch.tensor(list(positions), dtype=torch.int64)
        if isinstance(self.inputs, Tensor):
            inputs: Tensor | tuple[str, ...] = self.inputs[index]
        else:
            inputs = tuple(self.inputs[i] for i in positions)
        numbers = tuple(self.numbers[i] for i in positions)
        return replace(self, inputs=inputs, labels=self.labels[index], numbers=numbers)


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch after another; texts are padded on the right to the longest.

    Types of tokens are kept where a batch has some.
    """
    if batches[0].mask is None:
        images = torch.cat([batch.inputs for batch in batches])
        return Batch(images, torch.cat([batch.labels for batch in batches]))
    width = max(batch.inputs.shape[1] for batch in batches)
    masks, inputs, labels, types = [], [], [], []
    typed = any(batch.types is not None for batch in batches)
    for batch in batches:
        assert batch.mask is not None
        more = (0, width - batch.inputs.shape[1])
        inputs.append(pad(batch.inputs, more))
        masks.append(pad(batch.mask, more))
        kinds = torch.zeros_like(batch.inputs) if batch.types is None else batch.types
        types.append(pad(kinds, more))
        targets = batch.labels.dim() == 2  # of a language model, which predicts no padding
        labels.append(pad(batch.labels, more, value=-100) if targets else batch.labels)
    kinds_of_all = torch.cat(types) if typed else None
    return Batch(torch.cat(inputs), torch.cat(labels), torch.cat(masks), kinds_of_all)
