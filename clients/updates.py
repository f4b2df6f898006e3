"""What a client's work in one round amounts to."""

from dataclasses import dataclass, field
from typing import Any

from fedsim.store.capture import Kind
from fedsim.types import Batch, Tensors


@dataclass(frozen=True, slots=True)
class LocalUpdate:
    """Tensors of a reply, and the private facts behind them.

    Attributes:
        kind: ``gradient`` or ``weights``.
        tensors: gradients or trained weights; frozen parameters are absent.
        batch: the distinct examples used, in the order of their first use.
        positions: positions of these examples among the client's rows.
        all_rows: whether these are all the rows that the client owns.
        steps: examples of each local step, as indices into ``batch``.
        loss: mean training loss over the steps.
        defense: name and options of each defense, the privacy budget turned into noise.
        learning_rate: mean over the local steps; that of the server under FedSGD.
        memory: what the client keeps for its next round; empty if no defense asks for it.
    """

    kind: Kind
    tensors: Tensors
    batch: Batch
    positions: tuple[int, ...]
    all_rows: bool
    steps: tuple[tuple[int, ...], ...]
    loss: float
    defense: tuple[dict[str, Any], ...] = ()
    learning_rate: float = 0.0
    memory: Tensors = field(default_factory=dict)
