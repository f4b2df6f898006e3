"""Thresholds by which a guess is certified or consistent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProofCuts:
    """What ``attacks.proofs.verdict`` decides by.

    Attributes:
        float_sums: relative error of a message that a client's own float32 sums explain.
        local_steps: the same of replayed local steps, since Adam divides small entries by their
            own size, rounding included.
        loosest: largest relative error that a proof may put down to rounding; a wire that needs a
            larger bound certifies nothing.
        p_value: smallest p-value of a consistent guess.
        rival: largest p-value of guesses that differ from it in a word.
    """

    float_sums: float = 1e-4
    local_steps: float = 5e-3
    loosest: float = 0.01
    p_value: float = 0.01
    rival: float = 1e-6


CUTS = ProofCuts()
