"""Thresholds of the readings that all attacks share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedCuts:
    """Thresholds on embedding rows, spectra and distorted entries."""

    # Share of a tied table's rows, lowest norm first, that are taken for words absent from the
    # batch.
    absent_words: float = 0.6
    # Smallest singular value that counts towards the span of a tied head, as a share of the
    # largest; below lies float32 rounding.
    head_singular_value: float = 1e-7
    # Smallest part of a tied row outside the head's span that is more than rounding, as a share
    # of the row's norm.
    row_outside_head: float = 1e-5
    # Smallest change of a float32 weight row that is more than rounding, as a share of the
    # row's norm.
    moved_row: float = 1e-6
    # Smallest gradient norm of a tensor that is more than float64 rounding, as a share of the
    # largest; the others are left out.
    living_gradient: float = 1e-10
    equal_magnitude: float = 1e-3  # relative spread of magnitudes that are one number, as of signs
    # Share of nonzero entries from which zeros are no pruning; of those in living rows and
    # columns, or of a whole update.
    full_share: float = 0.98
    # Smallest kept magnitude of a pruned tensor, as a share of the median one, from which the
    # largest entries were kept and not random ones.
    kept_largest: float = 0.1
    # Rounding error, as a share of the smallest entry, that explains a zero.
    rounded_zero: float = 0.2
    grid_share: float = 0.95  # share of entries on a grid from which a tensor was rounded to it
    grid_error: float = 0.01  # largest distance of an entry from a grid, in steps
    # Steps from zero to the largest entry of a grid, below which it is one.
    most_steps: float = 1024.0
    one_size: float = 0.01  # share by which an entry is as large as the largest
    # Half of the next judges alike; twice it misses AdamW.
    # Share of a step's entries of one size: Adam 1, AdamW with silent units .65, a gradient .001.
    sharing_it: float = 0.5
    fewest_on_grid: int = 64  # entries of a tensor that are not zero, below which no grid shows
    float_sums: float = 1e-6  # error of a client's own float32 sums, as a share of a tensor's rms
    # Share of entries that were sent, below which an embedding row tells more of a word than
    # the layers behind it.
    heavily_pruned: float = 0.03
    # Eigenvalue that counts as signal, as a multiple of the Marchenko-Pastur edge.
    spike: float = 1.02
    # Eigenvalue that is more than float64 rounding, as a share of the largest.
    spike_floor: float = 1e-13
    # Distance of a client's unit vector from the row space of the matrix of cohorts, at which sums
    # determine its update; rounding stays below 1e-12.
    determined: float = 1e-8
    # Singular value behind the number of examples, as a share of the one before it, up to which a
    # sum's gradient has that rank.
    summed_rank: float = 0.01
    # Sine of the angle between spans of two sums: of directions that both share, 1e-6 at 64 rows of
    # CIFAR-10.
    common_sine: float = 1e-3
    separate_sine: float = 0.03  # of the first direction that they do not share, 0.3 there
    completion_rounds: int = 20  # rounds of imputation of entries that were not sent


CUTS = ObservedCuts()
