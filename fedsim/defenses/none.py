"""No defense at all: the row that every other defense is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.defenses.base import Defense


@dataclass(frozen=True)
class NoDefense(Defense):
    """Leaves the model, the batch and the update as they are."""
