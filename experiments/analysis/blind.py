"""The one rule for attacks that return less than a guess that sees no update: they test nothing.

Verdicts, ``fedsim calibrate`` and ``fedsim check`` all ask it. An attack that returns less than an
attacker knows without any update, as an empty text, has not read what is there; that it fails says
nothing of a better one.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.plan.config import VerdictRule


def shortfall(leads: Iterable[float], effect: float) -> float | None:
    """How much less than a blind guess the best of some attacks returns.

    Args:
        leads: of each attack its mean lead over the blind guess; positive where it leaks more.
        effect: smallest effect that counts, in the same units.

    Returns:
        What is missing, above ``effect``; None where an attack comes up to the blind guess, or none
        was compared with one.
    """
    best = max(leads, default=0.0)
    return -best if best < -effect else None


def counting_effect(unit: str, rule: VerdictRule) -> float:
    """Smallest effect that counts on a metric of that unit, in this unit; see ``[verdict]``."""
    if unit == "dB":
        return rule.psnr
    return rule.rouge * (100.0 if unit == "points" else 1.0)
