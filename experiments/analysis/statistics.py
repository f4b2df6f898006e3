"""Summary statistics of scores, with intervals clustered by client."""

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
        n: number of examples.
        clusters: number of clients that own them.
        low: lower end of the interval; None if there is none.
        high: upper end of the interval.
        interval_of: unit of resampling: ``clients``; ``examples`` if all belong to one client, in
            which case the interval says nothing about other clients; ``none`` for one example.
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
        level: confidence level; above 0.95 if the interval is corrected for several comparisons.
        p: two-sided p-value of a mean of 0, uncorrected; None if there is no interval.
    """

    level: float
    p: float | None


class Share(Record):
    """Share of examples at or beyond a threshold, with a 95 % Wilson interval.

    The interval assumes independent examples, which those of one client are not.
    """

    threshold: float
    value: float
    low: float
    high: float


class Summary(Estimate):
    """One metric over many examples.

    Attributes:
        worst: mean over the most leaked tenth of the examples, at least one.
        share: None if no threshold was given.
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
        better: direction that the attacker wants.
        threshold: examples at the threshold or on the attacker's side of it count as leaked.
        seed: seed of the bootstrap.

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
    """Mean of ``a - b`` over the same examples, with a t interval clustered by client.

    The errors of one client's examples are correlated, so they are summed by client before they
    are squared. With d = a - b over n examples of k clients, e_c the sum of d - mean(d) over
    client c, and m comparisons that share an error of 5 % (Bonferroni),

        variance = k / (k - 1) * sum of e_c^2 / n^2
        interval = mean(d) +- t(1 - 0.025 / m; k - 1 degrees of freedom) * sqrt(variance)

    This is the cluster-robust estimate for a mean, with the factor k / (k - 1) of CR1 and k - 1
    degrees of freedom (Cameron and Miller 2015, "A practitioner's guide to cluster-robust
    inference"). For clients of equal size it is the paired t test of the
    clients' means. Verdicts use it since the bootstrap of ``summary`` is too narrow for few
    clients. With one client, each example is a cluster of its own. Shapes and errors are those of
    ``summary``.

    Args:
        a: values of the examples.
        b: other values of the same examples.
        clusters: client of each example.
        comparisons: number of differences that share the error of 5 %.
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
    """95 % Wilson score interval of a rate; (0, 1) without any trial.

    With p = successes / n and z = 1.96 it holds every rate r that a z test does not reject, those
    with |p - r| <= z * sqrt(r * (1 - r) / n) (Wilson 1927). Unlike p +- z * standard error it
    stays within [0, 1], and has a width when no trial, or every trial, is a success.
    """
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
    """Bootstrap percentile interval of the mean; whole clusters are resampled.

    A percentile interval of k clusters is narrow like a z interval with the variance divided by k
    instead of k - 1. Hesterberg (2015, "What teachers should know about the bootstrap", section
    5.3) widens it to the percentile Phi(sqrt(k / (k - 1)) * t(0.025; k - 1)). No resample leaves
    the range of the clusters' means, so with 2, 3 and 4 clusters the coverage is at most 50, 75
    and 87 %, not 95 %.
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
