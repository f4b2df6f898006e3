"""Inner products of gradients in factored form with an update and with each other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.factored import Products, Vectors
from fedsim.types import Tensors

_DENSE = 0.03  # share of entries from which all are computed


@dataclass(frozen=True)
class Beside:
    """The summed gradient of further lines, its inner product with the update and its square.

    Both are of each tensor, as far as its entries were sent.
    """

    value: Tensors
    inner: dict[str, float]
    square: dict[str, float]

    @property
    def scale(self) -> float:
        """At which the gradient is nearest to the update."""
        return sum(self.inner.values()) / max(sum(self.square.values()), 1e-30)

    def bordered(
        self, name: str, both: Tensor, more: Tensor, gram: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Inner products of lanes with a tensor of the update and with each other, and with these.

        Args:
            name: of the tensor.
            both: with the update ``(batch, lane)``.
            more: with these lines, of the same shape.
            gram: with each other ``(batch, lane, lane)``.
        """
        ends = both.new_tensor([self.inner[name], self.square[name]]).expand(len(both), 2)
        both = torch.cat([both, ends[:, :1]], 1)
        below = torch.cat([more, ends[:, 1:]], 1)
        return both, torch.cat([torch.cat([gram, more[:, :, None]], 2), below[:, None]], 1)


def inner_products(group: Products | Vectors, index: int, value: Tensor) -> Tensor:
    """Inner product ``(lane,)`` of a layer's gradients with a tensor."""
    if isinstance(group, Products):
        return ((group.left[index] @ value) * group.right[index]).sum((1, 2))
    values = group.values[index]
    return values @ value.flatten()[: values.shape[1]]


def entries(group: Products | Vectors, index: int, where: Tensor) -> Vectors:
    """The entries of a layer's gradients that a mask holds."""
    name = (group.names[index],)
    if isinstance(group, Vectors):
        values = group.values[index]
        return Vectors(name, values[:, where.flatten()[: values.shape[1]]][None])
    inputs, slopes = group.left[index], group.right[index]
    if float(where.sum()) > _DENSE * where.numel():
        return Vectors(name, (inputs.mT @ slopes)[:, where][None])
    row, column = where.nonzero().T
    return Vectors(name, (inputs[:, :, row] * slopes[:, :, column]).sum(1)[None])


def products(group: Products | Vectors, index: int, batches: int) -> Tensor:
    """Inner products ``(batch, lane, lane)`` of the gradients of each batch's lanes."""
    if isinstance(group, Vectors):
        values = group.values[index]
        values = values.view(batches, len(values) // batches, values.shape[1])
        return values @ values.mT
    inputs, slopes = group.left[index], group.right[index]
    lanes, rows = len(inputs) // batches, inputs.shape[1]
    inputs, slopes = (part.reshape(batches, lanes * rows, -1) for part in (inputs, slopes))
    both = (inputs @ inputs.mT) * (slopes @ slopes.mT)
    return both.view(batches, lanes, rows, lanes, rows).sum((2, 4))
