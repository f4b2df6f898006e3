"""Thresholds of the readings that all attacks share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedCuts:
    """Thresholds on embedding rows, spectra and distorted entries.

    Attributes:
        absent_words: share of a tied table's rows, lowest norm first, that are taken for words
            absent from the batch.
        head_singular_value: smallest singular value that counts towards the span of a tied head,
            as a share of the largest; below lies float32 rounding.
        row_outside_head: smallest part of a tied row outside the head's span that is more than
            rounding, as a share of the row's norm.
        moved_row: smallest change of a float32 weight row that is more than rounding, as a share
            of the row's norm.
        living_gradient: smallest gradient norm of a tensor that is more than float64 rounding, as
            a share of the largest; the others are left out.
        equal_magnitude: relative spread of magnitudes that are one number, as of signs.
        full_share: share of nonzero entries from which zeros are no pruning; of those in living
            rows and columns, or of a whole update.
        kept_largest: smallest kept magnitude of a pruned tensor, as a share of the median one, from
            which the largest entries were kept and not random ones.
        rounded_zero: rounding error, as a share of the smallest entry, that explains a zero.
        grid_share: share of entries on a grid from which a tensor was rounded to it.
        grid_error: largest distance of an entry from a grid, in steps.
        most_steps: steps from zero to the largest entry of a grid, below which it is one.
        fewest_on_grid: entries of a tensor that are not zero, below which no grid shows.
        float_sums: error of a client's own float32 sums, as a share of a tensor's rms.
        heavily_pruned: share of entries that were sent, below which an embedding row tells more of
            a word than the layers behind it.
        spike: eigenvalue that counts as signal, as a multiple of the Marchenko-Pastur edge.
        spike_floor: eigenvalue that is more than float64 rounding, as a share of the largest.
        completion_rounds: rounds of imputation of entries that were not sent.
    """

    absent_words: float = 0.6
    head_singular_value: float = 1e-7
    row_outside_head: float = 1e-5
    moved_row: float = 1e-6
    living_gradient: float = 1e-10
    equal_magnitude: float = 1e-3
    full_share: float = 0.98
    kept_largest: float = 0.1
    rounded_zero: float = 0.2
    grid_share: float = 0.95
    grid_error: float = 0.01
    most_steps: float = 1024.0
    fewest_on_grid: int = 64
    float_sums: float = 1e-6
    heavily_pruned: float = 0.03
    spike: float = 1.02
    spike_floor: float = 1e-13
    completion_rounds: int = 20


CUTS = ObservedCuts()
