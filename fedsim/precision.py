"""The format in which a reply was computed, which may be narrower than the one it was sent in."""

import torch
from torch import Tensor

from fedsim.types import Tensors

_FORMATS = (torch.bfloat16, torch.float16, torch.float32)
_FEWEST = 64
"""Sizes that some tensor must have to tell a half-precision format: signs and steps of a coarse
quantisation fit any. Half and double of it judge the tests alike."""
_LOOKED_AT = 2**16


def at_own_precision(tensors: Tensors) -> Tensors:
    """Floats in the narrowest format that keeps every one of them, such as float32 sent as float64.

    Rounding errors are those of this format. Integers stay as they are.
    """
    floats = [value for value in tensors.values() if value.is_floating_point()]
    for dtype in _FORMATS:
        if all(value.dtype == dtype for value in floats):
            return tensors  # what bfloat16 holds, float16 mostly holds as well
        if not all(value.itemsize >= dtype.itemsize for value in floats):
            continue
        telling = dtype == torch.float32 or any(_sizes(v) >= _FEWEST for v in floats)
        if telling and all(_fits(value, dtype) for value in floats):
            return {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}
    return tensors


def _sizes(value: Tensor) -> int:
    return len(value.flatten()[:_LOOKED_AT].abs().unique())


def _fits(value: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(value.to(dtype).to(value.dtype), value)
