"""The undefended baseline that every other defense is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.defenses.base import Defense


@dataclass(frozen=True)
class NoDefense(Defense):
    """Sends the undefended update; the model, the batch and the update stay unchanged."""
