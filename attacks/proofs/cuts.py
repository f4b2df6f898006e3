"""Thresholds by which a guess is certified or consistent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProofCuts:
    """What proves a batch, and what ``attacks.proofs.verdict`` decides by."""

    float_sums: float = 1e-4  # relative error of a message that a client's own float32 sums explain
    # The same of replayed local steps, since Adam divides small entries by their own size,
    # rounding included.
    local_steps: float = 5e-3
    # Largest relative error that a proof may put down to rounding; a wire that needs a larger
    # bound certifies nothing.
    loosest: float = 0.01
    p_value: float = 0.01  # smallest p-value of a consistent guess
    rival: float = 1e-6  # largest p-value of guesses that differ from it in a word
    # Weight below which a sentence is absent, as a share of the largest.
    absent_weight: float = 0.05
    proof_sentences: int = 32  # most sentences tried for a batch, and the largest multiplicity
    # Sentences that differ from a guess in one word, which noise must not explain.
    consistency_rivals: int = 8
    # Share of a true gradient's entries that may be out of their bounds.
    stray_entries: float = 1e-3
    # Entries of a weight that were sent, below which nothing is told from them.
    fewest_entries: int = 256
    # Size of an entry whose sign rounding cannot change, in units of a tensor's rms.
    clear_sign: float = 0.01
    gradient_rounding: float = 1e-4  # error of an entry of a float32 gradient, in the same units
    guess_rounding: float = 1e-6  # error of a whole float32 gradient, as a share of its norm
    # Largest relative width of the bounds of an entry by which a scale is fitted.
    sharp_width: float = 0.1
    # Rms of a tensor that is more than rounding, as a share of the median one's.
    living_tensor: float = 1e-3
    granted_noise: float = 0.06  # largest difference of measured from granted noise, as a share
    # Rows and columns outside a guess's spaces that noise is measured on.
    outside_dimensions: int = 8


CUTS = ProofCuts()
