"""The undefended baseline that every other defense is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsim.defenses.base import Defense, DefenseFamily


@dataclass(frozen=True)
class NoDefense(Defense):
    """Sends the undefended update; the model, the batch and the update stay unchanged."""

    family: ClassVar[DefenseFamily] = "baseline"
    run_by: ClassVar[str] = "nobody"
    known: ClassVar[str] = "There is nothing to know."
