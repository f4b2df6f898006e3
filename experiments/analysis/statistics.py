"""Summary statistics of scores, with intervals clustered by client.

Which interval a mean gets was chosen by coverage, measured with 2 to 32 clients on four kinds of
scores (``tests/experiments/analysis/test_coverage.py``):

- from ``FEW`` clients on, a t interval widened for skewness (``_t_interval``), .93 to .97 covered;
- where half of the clients or more score alike at an end of the scale, as exact attacks do that
  hit or miss, and for hits of fewer clients: Clopper and Pearson's, which covers .95 or more;
- otherwise none: too few clients.

Where clients hold the same row, neither clients nor rows are independent: the interval is then the
outer one of that over clients and that over rows.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError
from fedsim.store.files import Record

Floats: TypeAlias = npt.NDArray[np.float64]
Members: TypeAlias = npt.NDArray[np.intp]
Direction: TypeAlias = Literal["higher", "lower"]
Resampled: TypeAlias = Literal["clients", "examples", "none"]
Ends: TypeAlias = tuple[float, float]

FEW = 5
"""Smallest number of clients whose mean gets a t interval. With 4 exponential scores are covered in
.929 of the cases (5: .932, 10: .95), so that half of it has no valid interval and twice as much
loses the brackets of most tables for .02."""
_SMALL = 0.5
"""The error of k clients is lowered by this over k. With half of it exponential scores of 5 clients
are covered in .930 of the cases, with twice as much normal ones in .974; with this in .932 and
.970."""
_WIDEST = 2.0
"""A side that skewness widens is at most so many times that of the t interval. With 1 exponential
scores of 5 clients are covered in .89 of the cases, with 2 in .932; with 4 in .940, by intervals
that are a quarter wider."""
_ALIKE = 1e-9
"""Means that differ by less are alike: rounding."""


class Estimate(Record):
    """A mean with its 95 % interval.

    Attributes:
        n: number of examples.
        clusters: number of clients that own them, or of their rows if these are fewer.
        low: lower end of the interval; None if there are too few clients for one.
        high: upper end of the interval.
        interval_of: what counts as independent: ``clients``; ``examples`` if all belong to one
            client, in which case the interval says nothing about other clients; ``none`` without
            an interval.
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
    """

    level: float


class Share(Record):
    """Share of examples at or beyond a threshold, with a 95 % interval over clients.

    See ``clopper_pearson``; a client counts once, with the share of its examples.
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
    rows: npt.ArrayLike | None = None,
) -> Summary:
    """Summarise one score per example.

    Args:
        values: finite, ``(example,)``.
        clusters: the client of each example, numbers or names, ``(example,)``.
        better: direction that the attacker wants.
        threshold: examples at the threshold or on the attacker's side of it count as leaked.
        rows: number of each example's row, below 0 if it is not known; examples of one row count
            as such whoever holds it. None if no row is known.

    Raises:
        ConfigError: there are no values, one is not finite, or the lengths differ.
    """
    scores, members, same = _checked(values, clusters, rows)
    leaked_first = np.sort(scores)[:: -1 if better == "higher" else 1]
    return Summary(
        **mean(values, clusters, rows=rows).model_dump(),
        median=float(np.median(scores)),
        worst=float(leaked_first[: math.ceil(len(scores) / 10)].mean()),
        share=None if threshold is None else _share(scores, members, same, better, threshold),
    )


def mean(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    error: float = 0.05,
    rows: npt.ArrayLike | None = None,
) -> Estimate:
    """Mean with its interval at level 1 - ``error``; the rest as in ``summary``."""
    scores, members, same = _checked(values, clusters, rows)
    ends = _outer(scores, _groupings(members, same), error, FEW)
    return Estimate(**_described(scores, members, same, ends))


def paired_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    comparisons: int = 1,
    fewest: int = FEW,
    rows: npt.ArrayLike | None = None,
) -> Difference:
    """Mean of ``a - b`` over the same examples, with its interval clustered by client.

    With one client, each example is a cluster of its own. Shapes and errors are those of
    ``summary``.

    Args:
        a: values of the examples.
        b: other values of the same examples.
        clusters: client of each example.
        comparisons: number of differences that share the error of 5 % (Bonferroni).
        fewest: clusters that a t interval takes; fewer than ``FEW`` for scores known to be normal.
        rows: as in ``summary``.
    """
    first, members, same = _checked(a, clusters, rows)
    second, *_ = _checked(b, clusters, rows)
    differences = first - second
    groupings, error = _groupings(members, same), 0.05 / comparisons
    bounded = bool(min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1)
    ends = _outer(differences, groupings, error, fewest, bounded=bounded)
    return Difference(**_described(differences, members, same, ends), level=1 - error)


def clopper_pearson(successes: float, trials: int, error: float = 0.05) -> Ends:
    """Interval of a rate that covers with at least 1 - ``error``; (0, 1) without any trial.

    The rates that neither one-sided binomial test at ``error / 2`` rejects (Clopper and Pearson
    1934), by the quantiles of two beta distributions, in which successes may be a sum of shares.
    With correlated examples of one client a client is the trial, and its share the success: of
    all scores in [0, 1] with the same mean, those that are 0 or 1 scatter most.
    """
    from scipy.stats import beta

    if trials == 0:
        return 0.0, 1.0
    hits = min(max(successes, 0.0), float(trials))
    low = 0.0 if hits <= _ALIKE else beta.ppf(error / 2, hits, trials - hits + 1)
    high = 1.0 if hits >= trials - _ALIKE else beta.ppf(1 - error / 2, hits + 1, trials - hits)
    return float(low), float(high)


def _checked(
    values: npt.ArrayLike, clusters: npt.ArrayLike, rows: npt.ArrayLike | None
) -> tuple[Floats, Members, Members]:
    """The scores, their clients and their rows, both numbered from 0."""
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
    alone = -1 - np.arange(len(scores))
    numbers = alone if rows is None else np.where(np.asarray(rows) < 0, alone, rows)
    members, same = (
        np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1) for keys in (owners, numbers)
    )
    return scores, members, same


def _groupings(members: Members, same: Members) -> list[Members]:
    """What counts as independent: clients, or rows if there is one client; both if they cross."""
    if not members.max():
        return [same]
    holders = np.bincount(np.unique(np.stack([same, members]), axis=1)[0])
    return [members, same] if holders.max() > 1 else [members]


def _described(
    scores: Floats, members: Members, same: Members, ends: Ends | None
) -> dict[str, Any]:
    """The fields of an ``Estimate``."""
    clusters = min(int(members.max()), int(same.max())) + 1
    return {
        "n": len(scores),
        "clusters": clusters,
        "mean": float(scores.mean()),
        "low": ends[0] if ends else None,
        "high": ends[1] if ends else None,
        "interval_of": ("clients" if clusters > 1 else "examples") if ends else "none",
    }


def _outer(
    values: Floats,
    groupings: Sequence[Members],
    error: float,
    fewest: int,
    *,
    bounded: bool | None = None,
) -> Ends | None:
    """The outer ends of ``_interval`` by each grouping; None where one has none."""
    ends = [_interval(values, groups, error, fewest, bounded=bounded) for groups in groupings]
    known = [pair for pair in ends if pair is not None]
    if len(known) < len(ends):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _interval(
    values: Floats, groups: Members, error: float, fewest: int, *, bounded: bool | None = None
) -> Ends | None:
    """Interval of a mean over whole groups; None where none would cover.

    Args:
        values: scores, or differences of two scores.
        groups: the cluster of each, numbered from 0.
        error: the probability with which the interval may miss.
        fewest: clusters that a t interval takes.
        bounded: whether these are differences of scores that lie in [0, 1]; None for scores.
    """
    sizes = np.bincount(groups)
    k, means = len(sizes), np.bincount(groups, weights=values) / sizes
    if k == 1:
        return None
    inside = bool(values.min() >= 0 and values.max() <= 1) if bounded is None else bounded
    hits = inside and bool(np.isin(values, (-1.0, 0.0, 1.0)).all())
    alike = _most_alike(means, at=(-1.0, 0.0, 1.0) if inside else None)
    if inside and (alike if k >= fewest else hits):
        low, high = _by_shares(means, error, signed=bounded is not None)
        centre = float(values.mean())  # unequal clients weigh more in it
        return min(low, centre), max(high, centre)
    if alike or k < fewest:
        return None
    if k < FEW:
        return _t_interval(values, groups, k, error, skewed=False)
    low, high = _t_interval(values, groups, k, error * (1 - _SMALL / k))
    if inside:  # a share is no less than nothing and no more than all
        low, high = max(low, 0.0 if bounded is None else -1.0), min(high, 1.0)
    return low, high


def _most_alike(means: Floats, at: tuple[float, ...] | None) -> bool:
    """Whether half of the clusters or more have the same mean, or all of them.

    Args:
        means: of each cluster.
        at: means that count, the ends of a scale, where shares of few examples coincide elsewhere
            by chance; None for any mean.
    """
    near = np.abs(means[:, None] - means) <= _ALIKE * np.maximum(1, np.abs(means))
    runs = near.sum(1)
    if runs.max() == len(means):
        return True
    if at is not None:
        runs = runs[(np.abs(means[:, None] - np.array(at)) <= _ALIKE).any(1)]
    return bool(runs.size and runs.max() > 1 and 2 * runs.max() >= len(means))


def _by_shares(means: Floats, error: float, *, signed: bool) -> Ends:
    """Clopper and Pearson's interval of the gains, less that of the losses if there can be any."""
    k = len(means)
    if not signed:
        return clopper_pearson(float(means.sum()), k, error)
    gains, losses = np.maximum(means, 0).sum(), np.maximum(-means, 0).sum()
    up, down = (clopper_pearson(float(count), k, error / 2) for count in (gains, losses))
    return up[0] - down[1], up[1] - down[0]


def _t_interval(
    values: Floats, groups: Members, k: int, error: float, *, skewed: bool = True
) -> Ends:
    """The t interval of a mean, widened to Hall's where the clusters may be and are skewed.

    The examples of a client are correlated, so clients are the unit. With the mean m_c of client c,
    its share w_c of the examples, and r_c = m_c - sum of w_c m_c,

        s^2 = sum of w_c^2 r_c^2 / d_c,   d_c = 1 - 2 w_c + sum of w_c^2,

    the interval is mean +- t(1 - error / 2; f) * s. For clients of equal size it is the t interval
    of their means. A client with most of the examples pulls the mean to itself, so that its r_c is
    small: d_c undoes that, and f counts how many clients the estimate rests on. s^2 is unbiased and
    f is Satterthwaite's where all m_c scatter alike (the correction CR2 and the degrees of freedom
    of Bell and McCaffrey 2002, "Bias reduction in standard errors for linear regression with
    multi-stage samples", for a mean); where the examples are independent, s^2 is too large.

    It does not know that scores near a bound are skewed. With the skewness g of the n_c r_c
    (Fisher's, with an unbiased third moment, as the plain one of five clients is half as large),
    the inverse of the transformation of Hall (1992, "On the removal of skewness by transformation")
    of the same quantile q,

        T(q) = sqrt(k) * 3 / g * (cbrt(1 + g * (q / sqrt(k) - g / (6 * k))) - 1)

    gives [mean - T(q) * s, mean - T(-q) * s]; each end is the outer one of the two, within limits.
    """
    from scipy.stats import t

    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=values) / sizes
    centre = float(values.mean())
    error_of_mean, freedom = _scatter(means - centre, sizes / len(values))
    q = float(t.ppf(1 - error / 2, freedom))
    down = up = q
    skew = _skewness(sizes * (means - centre)) if skewed else 0.0
    if abs(skew) > _ALIKE:
        down, up = (min(max(q, sign * _hall(sign * q, skew, k)), _WIDEST * q) for sign in (1, -1))
    return centre - down * error_of_mean, centre + up * error_of_mean


def _scatter(residuals: Floats, shares: Floats) -> tuple[float, float]:
    """Standard error of a mean and its degrees of freedom, see ``_t_interval``.

    s^2 is a quadratic form in the clients' means, with the matrix A = diag(u) + P S P' for
    u_c = w_c^2 / d_c, P = [w, u] and S = [[sum of u, -1], [-1, 0]]; f = tr(A)^2 / tr(A^2).
    """
    weight = shares / (1 - 2 * shares + shares @ shares) * shares
    variance = float(weight @ residuals**2)
    columns = np.stack([shares, weight], 1)
    inner = np.array([[weight.sum(), -1.0], [-1.0, 0.0]])
    gram, scaled = columns.T @ columns, columns.T @ (weight[:, None] * columns)
    second = weight @ weight + 2 * np.trace(inner @ scaled) + np.trace(inner @ gram @ inner @ gram)
    return math.sqrt(variance), float((shares @ shares) ** 2 / second)


def _skewness(deviations: Floats) -> float:
    """Fisher's, of three clients or more; ``deviations`` from their mean, not all 0."""
    k = len(deviations)
    variance = float(deviations @ deviations) / (k - 1)
    return float(k**2 / ((k - 1) * (k - 2)) * (deviations**3).mean() / variance**1.5)


def _hall(q: float, skew: float, k: int) -> float:
    root = np.cbrt(1 + skew * (q / math.sqrt(k) - skew / (6 * k)))
    return float(math.sqrt(k) * 3 / skew * (root - 1))


def _share(
    scores: Floats, members: Members, same: Members, better: Direction, threshold: float
) -> Share:
    leaked = (scores >= threshold if better == "higher" else scores <= threshold).astype(float)
    k = min(int(groups.max()) + 1 for groups in _groupings(members, same))
    value = float(leaked.mean())
    low, high = clopper_pearson(value * k, k)
    return Share(threshold=threshold, value=value, low=low, high=high)
