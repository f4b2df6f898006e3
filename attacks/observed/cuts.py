"""Thresholds of the readings that all attacks share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedCuts:
    """Thresholds on embedding rows and on proofs by gradient.

    Attributes:
        loosest_proof: largest relative error that a proof may put down to rounding; a wire that
            needs a larger bound certifies nothing.
        absent_words: share of a tied table's rows, lowest norm first, that are taken for words
            absent from the batch.
        head_singular_value: smallest singular value that counts towards the span of a tied head,
            as a share of the largest; below lies float32 rounding.
        row_outside_head: smallest part of a tied row outside the head's span that is more than
            rounding, as a share of the row's norm.
        moved_row: smallest change of a float32 weight row that is more than rounding, as a share
            of the row's norm.
    """

    loosest_proof: float = 0.01
    absent_words: float = 0.6
    head_singular_value: float = 1e-7
    row_outside_head: float = 1e-5
    moved_row: float = 1e-6


CUTS = ObservedCuts()
