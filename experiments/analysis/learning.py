"""Whether training made a model better: what was not learned, no defense can cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.analysis.findings import UTILITY
from experiments.analysis.statistics import paired_difference


def learned(
    measure: str, ends: Sequence[Mapping[str, float]], starts: Sequence[Mapping[str, float]]
) -> bool:
    """Whether training without a defense surely made the model better, paired by seed.

    Of one seed that has no interval the mean counts, and the MCC where that is measured: a model
    that names the commonest class has an accuracy, and an MCC of 0. True where nothing was measured
    before training.

    Args:
        measure: of utility.
        ends: measure -> value at the end, for each seed.
        starts: the same before training.
    """
    known = set.intersection(*map(set, (*ends, *starts)))
    name = "mcc" if "mcc" in known else measure
    if name not in known:
        return True
    sign = 100 if UTILITY[name] == "higher" else -100  # in percent: no interval of hits
    after, before = ([sign * values[name] for values in side] for side in (ends, starts))
    gained = paired_difference(after, before, range(len(ends)), fewest=2)
    return (gained.mean if gained.low is None else gained.low) > 0
