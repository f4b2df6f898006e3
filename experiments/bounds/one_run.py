"""Lower bounds on epsilon from the scores of canaries that a coin included or left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom, norm

from fedsim import accountant

_STEP = 1.02  # ratio of neighbouring noises that are tried
_EXPONENTS = np.linspace(0, 20, 401)


@dataclass(frozen=True)
class Claim:
    """What the accountant assumes: Poisson-sampled Gaussian mechanisms, composed.

    Attributes:
        steps: number of releases.
        rate: probability that a release contains the protected unit.
        noise: standard deviation divided by the sensitivity.
        delta: probability with which epsilon may be exceeded.
    """

    steps: int
    rate: float
    noise: float
    delta: float

    @property
    def epsilon(self) -> float:
        """The accountant's upper bound."""
        return accountant.epsilon(
            steps=self.steps, rate=self.rate, noise_multiplier=self.noise, delta=self.delta
        )

    def louder(self, power: int) -> Claim:
        """The same claim with ``1.02 ** power`` times the noise."""
        return replace(self, noise=self.noise * _STEP**power)

    def enough(self, error: float) -> int:
        """Canaries with which 99 of 100 bounds on a true claim reach half of its epsilon.

        As if it were one Gaussian mechanism of that epsilon; where rows are drawn, this is rough.

        Args:
            error: probability with which the bound may be wrong.
        """
        whole, half = (
            1 / accountant.noise_multiplier(steps=1, rate=1, target=target, delta=self.delta)
            for target in (self.epsilon, self.epsilon / 2)
        )
        spread = math.sqrt(4 + whole**2 / 2)
        return math.ceil(((norm.isf(error) + norm.isf(0.01)) * spread / (whole - half)) ** 2)

    def misses(self, false_positives: float) -> float:
        """Smallest false negative rate of any test with these false positives.

        The trade-off curve of the mechanism: ``max over e of 1 - delta(e) - exp(e) a`` (Dong et
        al. 2022).
        """
        return float(np.max(1 - _profile(self) - np.exp(_EXPONENTS) * false_positives))


@lru_cache(maxsize=1024)
def _profile(claim: Claim) -> NDArray[np.float64]:
    """Delta of the claim for each of ``_EXPONENTS``."""
    return np.array(losses(claim).get_delta_for_epsilon(list(_EXPONENTS)))


@lru_cache(maxsize=1024)
def losses(claim: Claim) -> Any:  # noqa: ANN401
    """Distribution of the privacy loss, rounded up."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = min(50.0, 1e-2 * max(1.0, (0.3 / claim.noise) ** 2))
    step = pld.from_gaussian_mechanism(
        claim.noise, value_discretization_interval=grid, sampling_prob=claim.rate
    )
    return step.self_compose(claim.steps)


Scores: TypeAlias = NDArray[np.float64]

_REFERENCE = 5000  # simulated canaries that the thresholds are taken from
_RATES = (0.05, 0.005)  # false positive rates of the claim at which a threshold lies
_QUIET = 1e-3  # noise multiplier below which epsilon is beyond all claims
_SPAN = 250  # steps to the smallest and to the largest
_SHARES = (1, 4, 16)  # one in so many canaries is guessed


@dataclass(frozen=True)
class CanaryTrial:
    """Canaries of one run.

    Attributes:
        scores: inner products with each release, in units of the sensitivity: 1 plus noise where
            the canary is in the release, else noise, ``(canary, step)``.
        included: result of the coin, ``(canary,)``.
        places: steps, not rounded, that a first pass through the rows in order would take to reach
            the canary, ``(canary,)``; of no use if each release has all rows.
        rate: share of the rows that each release draws.
    """

    scores: Scores
    included: NDArray[np.bool_]
    places: Scores
    rate: float = 1.0

    def until(self, steps: int) -> CanaryTrial:
        """The trial of the first releases alone."""
        return replace(self, scores=self.scores[:, :steps])

    @cached_property
    def shift(self) -> float:
        """Mean score of included canaries less that of the others, summed over the releases."""
        total = self.scores.sum(1)
        return float(total[self.included].mean() - total[~self.included].mean())


def gaussian_bound(trial: CanaryTrial, claim: Claim, confidence: float = 0.95) -> float:
    """Lower bound on epsilon, given that the mechanism has the claim's form and unknown noise.

    Scores of different canaries have to be independent given the coins. Gaussian noise makes them
    so, since canaries are orthogonal.

    Where each release has all rows, the summed scores are two normal samples, ``sqrt(steps) /
    noise`` standard deviations apart (Andrew et al. 2024), and the bound is epsilon at the lower
    confidence limit of that distance.

    Where rows are drawn, a threshold calls canaries with a larger statistic included. Rates of
    false positives and false negatives have Clopper-Pearson upper bounds, which a mechanism as
    noisy as a point of the family allows only above its trade-off curve (Nasr et al. 2023, section
    4). Epsilon of the least noise that contradicts them is the bound. Thresholds are those of the
    claim, so that none is chosen by the data, and they share the error (Bonferroni).
    """
    if claim.rate >= 1:
        if (distance := _distance(trial, 1 - confidence)) <= 0:
            return 0.0
        return replace(claim, noise=max(_QUIET, math.sqrt(claim.steps) / distance)).epsilon
    tests = list(_tests(claim))
    error = (1 - confidence) / len(tests) / 2
    known = [
        (
            _most(int(above[~trial.included].sum()), int((~trial.included).sum()), error),
            _most(int((~above)[trial.included].sum()), int(trial.included.sum()), error),
        )
        for values, threshold in ((_STATISTICS[kind](trial, claim), t) for kind, t in tests)
        for above in [values > threshold]
    ]

    def contradicted(power: int) -> bool:
        louder = claim.louder(power)
        return any(misses < louder.misses(alarms) for alarms, misses in known)

    if not contradicted(_SPAN):
        return 0.0
    low, high = -_SPAN - 1, _SPAN
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if contradicted(middle) else (middle, high)
    return max(0.0, float(losses(claim.louder(high)).get_epsilon_for_delta(claim.delta)))


def _distance(trial: CanaryTrial, error: float) -> float:
    """Lower confidence limit of the distance of included from other scores, in their deviations.

    From the noncentral t distribution, by the normal approximation 26.7.10 of Abramowitz and
    Stegun (1964).
    """
    total = trial.scores.sum(1)
    among, without = total[trial.included], total[~trial.included]
    free = len(total) - 2
    squares = among.var() * len(among) + without.var() * len(without)
    if not squares:  # no noise at all
        return math.inf if among.mean() > without.mean() else 0.0
    unit = math.sqrt(1 / len(among) + 1 / len(without))
    t = (among.mean() - without.mean()) / (unit * math.sqrt(squares / free))
    least = t * (1 - 1 / (4 * free)) - norm.isf(error) * math.sqrt(1 + t * t / (2 * free))
    return float(unit * least)


def any_bound(trial: CanaryTrial, claim: Claim, confidence: float = 0.95) -> float:
    """Lower bound on epsilon of any mechanism (Steinke et al. 2023, theorem 5.2 and appendix D).

    Nothing is assumed but the coins. The canaries with the largest statistics are guessed included,
    as many with the smallest left out, and the rest is not guessed. The number of right guesses
    then exceeds a binomial one, of probability ``1 / (1 + exp(-epsilon))``, by little.
    """
    kind = "sum" if claim.rate >= 1 else "likelihood"
    ranked = trial.included[np.argsort(_STATISTICS[kind](trial, claim))]
    return max(
        _largest(len(ranked), 2 * half, right, claim.delta, (1 - confidence) / len(_SHARES))
        for share in _SHARES
        if (half := len(ranked) // share // 2)
        for right in [int(ranked[-half:].sum() + (~ranked[:half]).sum())]
    )


def _largest(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Largest epsilon that the number of right guesses rules out."""
    low, high = 0.0, 50.0
    for _ in range(30):
        middle = (low + high) / 2
        if _p_value(canaries, guesses, right, middle, delta) < error:
            low = middle
        else:
            high = middle
    return low


def _p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    chance = 1 / (1 + math.exp(-epsilon))
    sure = float(binom.sf(right - 1, guesses, chance))
    fewer = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    slack = np.max(fewer / np.arange(1, right + 1), initial=0.0)
    return float(min(1.0, sure + 2 * canaries * delta * slack))


def _most(hits: int, trials: int, error: float) -> float:
    """Clopper-Pearson upper bound on a rate."""
    return 1.0 if hits == trials else float(beta.isf(error, hits + 1, trials - hits))


@lru_cache(maxsize=64)
def _tests(claim: Claim) -> tuple[tuple[str, float], ...]:
    """Statistics and thresholds, from canaries simulated under the claim."""
    rng = np.random.default_rng(0)
    shape = (2 * _REFERENCE, claim.steps)
    coins = np.arange(shape[0]) < _REFERENCE
    inside = coins[:, None] & (rng.random(shape) < claim.rate)
    places = rng.random(shape[0]) / claim.rate
    reference = CanaryTrial(rng.normal(0, claim.noise, shape) + inside, coins, places)
    tests = []
    for kind, statistic in _STATISTICS.items():
        values = statistic(reference, claim)
        among, without = values[coins], values[~coins]
        tests.append((kind, float(np.median(without) + np.median(among)) / 2))
        tests += [(kind, float(np.quantile(without, 1 - rate))) for rate in _RATES]
    return tuple(tests)


def _sum(trial: CanaryTrial, claim: Claim) -> Scores:
    """Sum over the releases, in which noise that is used again cancels out."""
    del claim
    return np.asarray(trial.scores.sum(1))


def _likelihood(trial: CanaryTrial, claim: Claim) -> Scores:
    """Log-likelihood ratio of the claim."""
    inside = math.log(claim.rate) + (2 * trial.scores - 1) / (2 * claim.noise**2)
    return np.asarray(np.logaddexp(math.log1p(-claim.rate), inside).sum(1))


def _order(trial: CanaryTrial, claim: Claim) -> Scores:
    """Sum over the steps that a canary would be in if batches went through the rows in order."""
    steps = trial.scores.shape[1]
    passes = np.arange(math.ceil(steps * claim.rate)) / claim.rate
    visits = (trial.places[:, None] + passes).astype(int)
    scores = np.take_along_axis(trial.scores, visits.clip(max=steps - 1), 1)
    return np.asarray((scores * (visits < steps)).sum(1))


_STATISTICS = {"sum": _sum, "likelihood": _likelihood, "order": _order}
