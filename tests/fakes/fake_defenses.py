"""A defense of somebody else, installed as a user's package is: by entry points."""

from dataclasses import dataclass

import torch

from fedsim.defenses.base import Defense
from fedsim.defenses.encoding import Encoding
from fedsim.types import Tensors


@dataclass(frozen=True)
class Rectify(Defense):
    """Sends the coordinates above ``floor`` and 0 for the others."""

    floor: float = 0.0

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The rectified update; nothing is drawn."""
        return self.surrogate(update)

    def surrogate(self, update: Tensors) -> Tensors:
        """The same, with its slope."""
        return {name: value.where(value > self.floor, 0) for name, value in update.items()}

    def encode(self, packed: Encoding) -> Encoding:
        """Zeros are left out."""
        return Encoding(sparse=True)
