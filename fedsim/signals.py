"""How much of the clean update is left in what a client sends, and how small that packs."""

from __future__ import annotations

import math

import torch

from fedsim.defenses.encoding import Encoding
from fedsim.files import Record
from fedsim.types import Tensors


class TensorSignal(Record):
    """One tensor of one update, before and after the defense.

    Attributes:
        clean: Euclidean norm of the update that the same steps would have sent without a defense.
        error: norm of what the defense changed.
        bytes: of the sent tensor, packed as ``Encoding`` says.
        dense: bytes of the tensor as it is.
    """

    clean: float
    error: float
    bytes: int
    dense: int

    @property
    def signal(self) -> float | None:
        """``ratio`` of the tensor."""
        return ratio(self.clean, self.error)


def ratio(clean: float, error: float) -> float | None:
    """``20 log10(clean / error)`` in dB.

    None where nothing was changed, minus infinity where nothing but noise was sent.
    """
    if error == 0:
        return None
    return 20 * math.log10(clean / error) if clean else -math.inf


def measure(clean: Tensors, sent: Tensors, encoding: Encoding) -> dict[str, TensorSignal]:
    """The signals of the floating-point tensors of ``sent``; buffers beside them are left out."""
    signals = {}
    for name, value in sent.items():
        before = clean[name]
        error = 0.0 if value is before else _norm(value - before)
        signals[name] = TensorSignal(
            clean=_norm(before),
            error=error,
            bytes=encoding.size(value),
            dense=value.numel() * value.itemsize,
        )
    return signals


def _norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value.float())) if value.numel() else 0.0
