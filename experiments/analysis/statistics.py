"""What a report says about many scores: the middle, the tail, and how sure it can be."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError
from fedsim.files import Record
from fedsim.seeds import numpy_generator

Floats: TypeAlias = npt.NDArray[np.float64]
Members: TypeAlias = npt.NDArray[np.intp]
Direction: TypeAlias = Literal["higher", "lower"]
Resampled: TypeAlias = Literal["clients", "examples", "none"]

RESAMPLES = 2000
_DRAWS_AT_ONCE = 4_000_000


class Estimate(Record):
    """A mean with its 95 % interval.

    Attributes:
        n: examples.
        clusters: clients that they belong to.
        low: lower end of the interval; None where there is none.
        high: upper end of the interval.
        interval_of: what was resampled: ``clients``; ``examples`` where all belong to one client,
            and then the interval says nothing about other clients; ``none`` for one example.
    """

    n: int
    clusters: int
    mean: float
    low: float | None
    high: float | None
    interval_of: Resampled


class Difference(Estimate):
    """A mean of paired differences.

    Attributes:
        level: of the interval; above 0.95 where several differences share one error.
        p: two-sided, of a mean of 0, not corrected; None where there is no interval.
    """

    level: float
    p: float | None


class Share(Record):
    """How many examples leaked up to a threshold, with a 95 % Wilson interval.

    The interval takes the examples as independent, which those of one client are not.
    """

    threshold: float
    value: float
    low: float
    high: float


class Summary(Estimate):
    """One metric over many examples.

    Attributes:
        worst: mean of the most leaked tenth of the examples, their number rounded up.
        share: None where no threshold was given.
    """

    median: float
    worst: float
    share: Share | None


def summary(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    better: Direction,
    threshold: float | None = None,
    seed: int,
) -> Summary:
    """Summarise one score per example.

    Args:
        values: finite, ``(example,)``.
        clusters: the client of each example: numbers or names ``(example,)``, or rows
            ``(example, key)`` such as (seed, client).
        better: the direction that the attacker wants.
        threshold: counts the examples at the threshold or on the attacker's side of it.
        seed: of the bootstrap.

    Raises:
        ConfigError: there are no values, one is not finite, or the lengths differ.
    """
    scores, members = _checked(values, clusters)
    leaked_first = np.sort(scores)[:: -1 if better == "higher" else 1]
    return Summary(
        **_estimate(scores, members, seed).model_dump(),
        median=float(np.median(scores)),
        worst=float(leaked_first[: math.ceil(len(scores) / 10)].mean()),
        share=None if threshold is None else _share(scores, better, threshold),
    )


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, clusters: npt.ArrayLike, *, comparisons: int = 1
) -> Difference:
    """The mean of ``a - b`` over the same examples, with a t interval clustered by client.

    The variance is cluster-robust (CR1 of Cameron and Miller 2015, "A practitioner's guide to
    cluster-robust inference") and t has one degree less than there are clients: for clients of
    equal size the paired t test of their means. A verdict rests on it, and the bootstrap of
    ``summary`` is too narrow for few clients. Arguments and errors as in ``summary``.

    Args:
        a: values of the examples, ``(example,)``.
        b: other values of the same examples.
        clusters: the client of each example.
        comparisons: how many differences share the error of 5 % (Bonferroni).
    """
    first, members = _checked(a, clusters)
    second, _ = _checked(b, clusters)
    differences = first - second
    k = int(members.max()) + 1
    groups = members if k > 1 else np.arange(len(differences))
    level = 1 - 0.05 / comparisons
    low, high, p = _t_interval(differences, groups, level)
    return Difference(
        n=len(differences),
        clusters=k,
        mean=float(differences.mean()),
        low=low,
        high=high,
        interval_of="none" if low is None else "clients" if k > 1 else "examples",
        level=level,
        p=p,
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate; (0, 1) where nothing was tried."""
    from scipy.stats import binomtest

    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def _checked(values: npt.ArrayLike, clusters: npt.ArrayLike) -> tuple[Floats, Members]:
    scores, owners = np.asarray(values, dtype=np.float64), np.asarray(clusters)
    if not scores.size:
        raise ConfigError("statistics: there are no values. Leave the empty group out.")
    if len(owners) != len(scores):
        raise ConfigError(
            f"statistics: {len(scores)} values, but {len(owners)} clients. Give one for each value."
        )
    if len(wrong := np.flatnonzero(~np.isfinite(scores))):
        raise ConfigError(
            f"statistics: value {wrong[0]} is {scores[wrong[0]]}. Use a metric with finite values."
        )
    return scores, np.unique(owners, axis=0, return_inverse=True)[1].reshape(-1)


def _estimate(scores: Floats, members: Members, seed: int) -> Estimate:
    clusters = int(members.max()) + 1
    interval_of: Resampled = "clients" if clusters > 1 else "examples"
    low = high = None
    if len(scores) == 1:
        interval_of = "none"
    elif interval_of == "clients":
        low, high = _interval(scores, members, seed)
    else:
        low, high = _interval(scores, np.arange(len(scores)), seed)
    return Estimate(
        n=len(scores),
        clusters=clusters,
        mean=float(scores.mean()),
        low=low,
        high=high,
        interval_of=interval_of,
    )


def _interval(scores: Floats, members: Members, seed: int) -> tuple[float, float]:
    """Bootstrap interval of the mean; clusters are resampled whole.

    The percentiles are moved outwards for few clusters (Hesterberg 2015, "What teachers should
    know about the bootstrap", section 5.3). No bootstrap of k clusters leaves the range of their
    means, so with 2, 3 and 4 clusters the true cover is at most 50, 75 and 87 %, not 95 %.
    """
    from scipy.stats import norm, t

    sums, counts = np.bincount(members, weights=scores), np.bincount(members)
    k = len(sums)
    rng = numpy_generator(seed, "bootstrap")
    rows = max(1, _DRAWS_AT_ONCE // k)
    means = []
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(k, size=(min(rows, RESAMPLES - start), k))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    tail = float(norm.cdf(math.sqrt(k / (k - 1)) * t.ppf(0.025, k - 1)))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def _t_interval(
    values: Floats, groups: Members, level: float
) -> tuple[float, float, float] | tuple[None, None, None]:
    from scipy.stats import t

    mean, k = values.mean(), int(groups.max()) + 1
    if k == 1:
        return None, None, None
    deviations = np.bincount(groups, weights=values - mean)
    error = math.sqrt(k / (k - 1) * float(deviations @ deviations)) / len(values)
    half = float(t.ppf((1 + level) / 2, k - 1)) * error
    if error == 0:
        return float(mean), float(mean), float(mean == 0)
    return float(mean - half), float(mean + half), float(2 * t.sf(abs(mean) / error, k - 1))


def _share(scores: Floats, better: Direction, threshold: float) -> Share:
    leaked = scores >= threshold if better == "higher" else scores <= threshold
    low, high = wilson(int(leaked.sum()), len(scores))
    return Share(threshold=threshold, value=float(leaked.mean()), low=low, high=high)
