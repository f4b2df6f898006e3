"""Signal-to-noise ratio and packed size of an update under a defense."""

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
        error: Euclidean norm of the difference that the defense made.
        bytes: size of the sent tensor when packed as its ``Encoding`` allows.
        dense: size of the tensor in its own dtype, in bytes.
    """

    clean: float
    error: float
    bytes: int
    dense: int

    @property
    def signal(self) -> float | None:
        """Signal-to-noise ratio of the tensor in dB, as ``ratio`` defines it."""
        return ratio(self.clean, self.error)


def ratio(clean: float, error: float) -> float | None:
    """Signal-to-noise ratio ``20 log10(clean / error)`` in dB.

    None if the defense changed nothing, minus infinity if the clean update is 0.
    """
    if error == 0:
        return None
    return 20 * math.log10(clean / error) if clean else -math.inf


def measure(clean: Tensors, sent: Tensors, encoding: Encoding) -> dict[str, TensorSignal]:
    """Signals of the floating-point tensors of the update ``sent``, by name.

    Args:
        clean: the update without the defense; it has every name of ``sent``.
        sent: the update with the defense; the very same tensor counts as unchanged.
        encoding: how the defended update can be packed.
    """
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
