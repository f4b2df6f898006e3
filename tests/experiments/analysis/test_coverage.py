"""How often intervals hold the true mean, by clients and kind of score."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from experiments.analysis.statistics import mean, paired_difference

Floats = npt.NDArray[np.float64]
PER_CLIENT = 4


def normal(rng: np.random.Generator, clients: int) -> Floats:
    effect = rng.normal(size=(clients, 1))
    return effect + rng.normal(size=(clients, PER_CLIENT))


def near_one(rng: np.random.Generator, clients: int) -> Floats:
    """ROUGE of an attack that mostly works; the examples of a client are alike."""
    return np.repeat(rng.beta(4, 1, size=(clients, 1)), PER_CLIENT, axis=1)


def hits(rng: np.random.Generator, clients: int) -> Floats:
    return (rng.random((clients, PER_CLIENT)) < 0.9).astype(float)


def whole_hits(rng: np.random.Generator, clients: int) -> Floats:
    """A client's examples all come back, or none does."""
    return np.repeat((rng.random((clients, 1)) < 0.9).astype(float), PER_CLIENT, axis=1)


def rare(rng: np.random.Generator, clients: int) -> Floats:
    return (rng.random((clients, PER_CLIENT)) < 0.05).astype(float)


def exponential(rng: np.random.Generator, clients: int) -> Floats:
    """As skewed as waiting times; the examples of a client are alike."""
    return np.repeat(rng.exponential(size=(clients, 1)), PER_CLIENT, axis=1)


def skewed(rng: np.random.Generator, clients: int) -> Floats:
    effect = rng.exponential(size=(clients, 1))
    return effect + 0.5 * rng.normal(size=(clients, PER_CLIENT))


KINDS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
    "normal": (normal, 0.0),
    "near one": (near_one, 0.8),
    "hits": (hits, 0.9),
    "whole hits": (whole_hits, 0.9),
    "rare": (rare, 0.05),
    "skewed": (skewed, 1.0),
    "exponential": (exponential, 1.0),
}


def covered(kind: str, clients: int, runs: int) -> tuple[float, float]:
    """Share of the intervals that hold the true mean, and of the samples that have one."""
    draw, true = KINDS[kind]
    rng = np.random.default_rng(clients)
    owners = np.repeat(np.arange(clients), PER_CLIENT)
    held = given = 0
    for _ in range(runs):
        estimate = mean(draw(rng, clients).ravel(), owners)
        if estimate.low is not None and estimate.high is not None:
            given += 1
            held += estimate.low - 1e-9 <= true <= estimate.high + 1e-9
    return held / max(given, 1), given / runs


@pytest.mark.some(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [2, 4, 5, 12])
def test_intervals_cover_or_are_not_given(kind: str, clients: int) -> None:
    held, given = covered(kind, clients, 250)
    exact = kind in ("hits", "whole hits", "rare")
    assert given == (1.0 if exact or clients >= 5 else 0.0)
    if given:
        assert held >= 0.885  # .93 less three standard errors


UNEQUAL = ((400, *[1] * 31), (400, *[4] * 7), (100, 100, *[1] * 10), tuple(range(1, 13)))
"""Examples by client. With the errors summed by client and k - 1 degrees of freedom .05, .08, .63
and .94 were covered."""


def covered_unequal(sizes: tuple[int, ...], correlated: float, runs: int) -> float:
    rng, owners = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    held = 0
    for _ in range(runs):
        effect = correlated * rng.normal(size=len(sizes))
        estimate = mean(effect[owners] + rng.normal(size=len(owners)), owners)
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0 <= estimate.high
    return held / runs


@pytest.mark.some(3)
@pytest.mark.parametrize("sizes", UNEQUAL)
@pytest.mark.parametrize("correlated", [0.0, 1.0])
def test_a_client_with_most_of_the_examples_narrows_no_interval(
    sizes: tuple[int, ...], correlated: float
) -> None:
    assert covered_unequal(sizes, correlated, 150) >= 0.90  # .95 less three standard errors


@pytest.mark.slow
def test_coverage_is_between_93_and_97_percent_or_exact() -> None:
    for kind in KINDS:
        for clients in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32):
            held, given = covered(kind, clients, 4000)
            print(f"{kind}, {clients} clients: {held:.3f} covered, {given:.2f} with an interval")
            exact = kind in ("hits", "whole hits", "rare")
            if given:
                assert held >= 0.93 - 0.004  # a standard error of 4,000 draws
                assert exact or held <= 0.97 + 0.004


def test_a_difference_of_hits_has_the_exact_interval() -> None:
    difference = paired_difference(np.ones(60), np.zeros(60), np.arange(60))
    assert difference.low is not None
    assert 0.8 < difference.low < difference.mean == difference.high == 1.0
    few = paired_difference(np.ones(3), np.zeros(3), np.arange(3))
    assert few.low is not None
    assert few.low < 0.0
    # None of 120 clients differs: at most one in twenty does.
    none = paired_difference(np.zeros(120), np.zeros(120), np.arange(120))
    assert none.high is not None
    assert 0 < none.high < 0.05


def test_an_interval_of_shares_ends_with_the_scale() -> None:
    shares = [1.0, 0.98, 0.97, 0.96, 0.3, 0.95]
    estimate = mean(shares, range(6))
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 < estimate.low < estimate.mean < estimate.high == 1.0
    between = paired_difference(shares, [0.0, 0.01, 0.02, 0.0, 0.9, 0.03], range(6))
    assert between.low is not None
    assert between.high is not None
    assert -1 <= between.low < between.mean < between.high == 1.0
    assert (mean([10 * x for x in shares], range(6)).high or 0) > 10.0  # no share


def test_scores_that_are_alike_off_the_scale_have_no_interval() -> None:
    estimate = mean([100.0, 100.0, 100.0, 100.0, 90.0, 95.0], range(6))
    assert (estimate.low, estimate.high, estimate.interval_of) == (None, None, "none")
