"""Tensors that a client sent in parts: pairs of values and places, and products of two factors."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedsim.types import Tensors

_PAIRS = "pairs of values and their places, as top-k sends them, with zeros elsewhere"
_FACTORS = "products of two factors, as PowerSGD sends them"


def expanded(
    parts: Sequence[Tensor], orders: Iterable[Sequence[str]], expected: Tensors
) -> tuple[Tensors, str]:
    """The tensors behind the parts, and what these are; none where they are no parts.

    Args:
        parts: as they came, each tensor's one behind the other; or of all tensors the values, and
            then all places; or one pair for the vector of all tensors.
        orders: names in the orders in which they may stand.
        expected: tensors of the same shapes by name.
    """
    orders = list(orders)
    shapes = [part.shape for part in parts]
    if shapes in [[expected[name].shape for name in names] for names in orders]:
        return {}, ""
    half = len(parts) // 2
    turned = [part for pair in zip(parts[:half], parts[half:], strict=False) for part in pair]
    for names in orders:
        for given in (parts, turned):
            if whole := _read(list(given), [expected[name] for name in names]):
                return dict(zip(names, whole[0], strict=True)), whole[1]
    for names in orders if len(parts) == 2 else ():
        like = [expected[name] for name in names]
        sizes = [value.numel() for value in like]
        first, second = parts
        if (vector := _scattered(first, second, first.new_empty(sum(sizes)))) is not None:
            shaped = map(Tensor.view_as, vector.split(sizes), like)
            return dict(zip(names, shaped, strict=True)), _PAIRS
    return {}, ""


def _read(parts: list[Tensor], like: Sequence[Tensor]) -> tuple[list[Tensor], str] | None:
    """Tensors of these shapes from the front, where that takes all parts and some are pairs."""
    tensors, how = list[Tensor](), dict[str, None]()
    for value in like:
        if parts and parts[0].shape == value.shape:
            tensors.append(parts.pop(0))
            continue
        if len(parts) < 2:
            return None
        pair = parts.pop(0), parts.pop(0)
        for form, what in ((_scattered, _PAIRS), (_multiplied, _FACTORS)):
            if (whole := form(*pair, value)) is not None:
                tensors.append(whole)
                how[what] = None
                break
        else:
            return None
    return None if parts or not how else (tensors, " and ".join(how))


def _scattered(first: Tensor, second: Tensor, like: Tensor) -> Tensor | None:
    """Values at their places among zeros; the places are numbers of entries, or one an axis."""
    values, places = (first, second) if first.is_floating_point() else (second, first)
    if not values.is_floating_point() or places.is_floating_point() or values.dim() != 1:
        return None
    places = places.long()
    if places.shape == (like.dim(), len(values)):
        strides = torch.tensor(like.new_empty(like.shape).stride())
        places = strides @ places
    inside = (places >= 0) & (places < like.numel())
    if places.shape != values.shape or not bool(inside.all()):
        return None
    whole = torch.zeros(like.numel(), dtype=values.dtype)
    return whole.scatter(0, places, values).view_as(like)


def _multiplied(first: Tensor, second: Tensor, like: Tensor) -> Tensor | None:
    """``P Q^T`` of factors ``(row, rank)`` and ``(column, rank)``."""
    if not first.is_floating_point() or not second.is_floating_point() or like.dim() < 2:
        return None
    rows, columns = len(like), like[0].numel()
    shapes = first.dim(), second.dim(), *first.shape[:1], *second.shape[:1]
    if shapes != (2, 2, rows, columns) or first.shape[1] != second.shape[1]:
        return None
    return (first @ second.T).view_as(like)
