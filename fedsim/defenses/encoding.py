"""How many bytes a defended update takes where it is packed as tightly as its defense allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the coordinates of a tensor are packed; names, shapes and headers are not counted.

    Simulated tensors cross the simulated wire in float32, whatever their values; this is what they
    would take.

    Attributes:
        bits: of one coordinate that is not 0; None for all bits of its dtype.
        zero: whether these bits have a code for 0, as one bit for a sign has not.
        sparse: whether zeros may be left out: the others then come with their indices, or with a
            bitmap, whichever is shorter.
        bucket: coordinates that share a scale of 32 bits; 0 for all of a tensor, None for no scale.
    """

    bits: int | None = None
    zero: bool = True
    sparse: bool = False
    bucket: int | None = None

    def size(self, tensor: Tensor) -> int:
        """Bytes of the tensor; integers are never packed."""
        count, own = tensor.numel(), 8 * tensor.itemsize
        if not tensor.is_floating_point() or self == Encoding():
            return count * tensor.itemsize
        bits = self.bits or own
        others = int(tensor.count_nonzero()) if self.sparse or not self.zero else count
        ways = [count + others * bits]  # a bitmap
        if self.zero or others == count:
            ways.append(count * bits)
        if self.sparse:
            ways.append(others * (bits + max(count - 1, 1).bit_length()))
        return math.ceil(min(ways) / 8) + 4 * self._scales(count)

    def _scales(self, count: int) -> int:
        if self.bucket is None:
            return 0
        return math.ceil(count / self.bucket) if self.bucket else 1
