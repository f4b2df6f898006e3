"""Thresholds by which a guess is certified or consistent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProofCuts:
    """What ``attacks.proofs.verdict`` decides by."""

    float_sums: float = 1e-4  # relative error of a message that a client's own float32 sums explain
    # The same of replayed local steps, since Adam divides small entries by their own size,
    # rounding included.
    local_steps: float = 5e-3
    # Largest relative error that a proof may put down to rounding; a wire that needs a larger
    # bound certifies nothing.
    loosest: float = 0.01
    p_value: float = 0.01  # smallest p-value of a consistent guess
    rival: float = 1e-6  # largest p-value of guesses that differ from it in a word


CUTS = ProofCuts()
