"""Size in bytes of a defended update, packed as tightly as its defenses allow."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Encoding:
    """Packing of a tensor's coordinates, without the cost of names, shapes and headers.

    The simulation sends all tensors in float32; this computes what they would take. With m
    coordinates of b bits, of which n are not 0, a dense tensor takes ``m b`` bits, a bitmap
    ``m + n b``, and a list with indices ``n (b + ceil(log2 m))``; the smallest that applies is
    used, plus 32 bits a scale.

    Attributes:
        bits: number of bits of a coordinate that is not 0; None for the bits of its dtype.
        zero: whether the code can represent 0, which a single bit for the sign cannot.
        sparse: whether zeros may be left out, in which case the others come with indices or a
            bitmap.
        bucket: number of coordinates that share a scale of 32 bits; 0 for all of a tensor, None if
            there is no scale.
    """

    bits: int | None = None
    zero: bool = True
    sparse: bool = False
    bucket: int | None = None

    def size(self, tensor: Tensor) -> int:
        """Size of the packed tensor in bytes; integers are not packed."""
        count, width = tensor.numel(), 8 * tensor.itemsize
        if not tensor.is_floating_point() or self == Encoding():
            return count * tensor.itemsize
        bits = self.bits or width
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
