"""The bytes of a safetensors file, without a copy of its tensors."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import StoreError
from fedsim.store.files import Buffer


def safetensors_parts(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Buffer]:
    """Bytes of a safetensors file, as buffers that share the arrays' memory.

    The library's ``save`` copies each tensor twice, which is most of the cost of a capture.
    """
    kinds = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    names, header = _header(kinds)
    whole = [np.ascontiguousarray(arrays[name]) for name in names]
    return [header, *(array.data.cast("B") for array in whole if array.nbytes)]


def check_storable(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise ``StoreError`` for what no safetensors file can hold."""
    for name, array in arrays.items():
        if array.dtype.str.lstrip("<|") not in _DTYPES:
            raise StoreError(f"{name!r} has the type {array.dtype}, which is not stored")
        if name == "__metadata__" or not name.isprintable():
            raise StoreError(f"{name!r} is no name of a tensor")


@lru_cache(maxsize=16)
def _header(kinds: tuple[tuple[str, str, tuple[int, ...]], ...]) -> tuple[tuple[str, ...], bytes]:
    """The names in the order of the file, and what stands before the tensors."""
    header: dict[str, object] = {}
    end = 0
    for name, dtype, shape in sorted(kinds, key=lambda kind: (-np.dtype(kind[1]).itemsize, kind)):
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {
            "dtype": _DTYPES[dtype.lstrip("<|")],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return tuple(header), struct.pack("<Q", len(text)) + text


_DTYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u8": "U64",
    "u4": "U32",
    "u2": "U16",
    "u1": "U8",
    "b1": "BOOL",
}
