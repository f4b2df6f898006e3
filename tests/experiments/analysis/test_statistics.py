import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from experiments.analysis.statistics import Difference, clopper_pearson, paired_difference, summary
from fedsim.errors import ConfigError


def test_mean_median_and_the_worst_tenth_in_both_directions() -> None:
    values = np.arange(1.0, 21.0)
    np.random.default_rng(0).shuffle(values)
    high = summary(values, np.arange(20), better="higher")
    low = summary(values, np.arange(20), better="lower")
    assert (high.n, high.clusters, high.mean, high.median) == (20, 20, 10.5, 10.5)
    assert (high.worst, low.worst) == (19.5, 1.5)
    assert summary(values[:11], [0] * 11, better="higher").worst == pytest.approx(
        np.sort(values[:11])[-2:].mean()
    )


def test_one_example_has_no_interval() -> None:
    estimate = summary([3.0], [7], better="lower")
    assert (estimate.n, estimate.mean, estimate.median, estimate.worst) == (1, 3.0, 3.0, 3.0)
    assert (estimate.low, estimate.high, estimate.interval_of) == (None, None, "none")


def test_equal_values_have_no_interval_or_that_of_unseen_clients() -> None:
    estimate = summary([30.0] * 6, [0, 0, 1, 1, 2, 2], better="higher")
    assert (estimate.low, estimate.mean, estimate.high) == (None, 30.0, None)
    hits = summary([1.0] * 6, [0, 0, 1, 1, 2, 2], better="higher")
    assert (hits.low, hits.high) == pytest.approx((0.025 ** (1 / 3), 1.0))


def test_clients_count_whole() -> None:
    # Within a client there is no spread, so that examples would give a far narrower interval.
    values, clients = np.repeat([0.0, 1.0, 2.0, 1.5, 0.2], 100), np.repeat([4, 1, 9, 2, 3], 100)
    estimate = summary(values, clients, better="higher")
    assert (estimate.interval_of, estimate.clusters) == ("clients", 5)
    assert estimate.low is not None
    assert estimate.low < 0
    single = summary(values, np.zeros(500), better="higher")
    assert (single.interval_of, single.clusters) == ("examples", 1)
    assert single.low is not None
    half = 1.965 * values.std(ddof=1) / math.sqrt(500)
    assert single.low == pytest.approx(0.94 - half, abs=0.02)


def test_four_clients_are_too_few() -> None:
    estimate = summary(np.arange(8.0), np.repeat(np.arange(4), 2), better="higher")
    assert (estimate.low, estimate.high, estimate.interval_of) == (None, None, "none")


def test_the_mean_is_over_examples_however_unequal_the_clients() -> None:
    estimate = summary([0.0] * 9 + [1.0], [0] * 9 + [1], better="higher")
    assert estimate.mean == pytest.approx(0.1)


def test_names_are_clients_too() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 6.0, 9.0]
    numbers = summary(values, [0, 0, 1, 2, 3, 4], better="higher")
    assert summary(values, ["a", "a", "b", "c", "d", "e"], better="higher") == numbers
    assert numbers.low is not None


def test_the_order_of_rows_does_not_count() -> None:
    rng = np.random.default_rng(0)
    values, clients = rng.normal(size=60), np.repeat(np.arange(12), 5)
    first, order = summary(values, clients, better="higher"), rng.permutation(60)
    shuffled = summary(values[order], clients[order], better="higher")
    assert (shuffled.low, shuffled.high) == pytest.approx((first.low, first.high))


def test_share_counts_the_threshold_and_clients_once() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    high = summary(values, range(4), better="higher", threshold=20.0).share
    low = summary(values, range(4), better="lower", threshold=20.0).share
    assert high is not None
    assert low is not None
    assert (high.threshold, high.value, low.value) == (20.0, 0.75, 0.5)
    assert (high.low, high.high) == pytest.approx((0.194, 0.994), abs=1e-3)  # R: binom.test(3, 4)
    pairs = summary(np.repeat(values, 50), np.repeat(range(4), 50), better="higher", threshold=20.0)
    assert pairs.share == high
    assert summary(values, range(4), better="higher").share is None


def test_a_paired_difference_is_sharper_than_two_means() -> None:
    rng = np.random.default_rng(0)
    base, clients = rng.normal(size=40) * 10, np.repeat(np.arange(10), 4)
    difference = paired_difference(base + 1 + 0.1 * rng.normal(size=40), base, clients)
    assert (difference.n, difference.clusters, difference.interval_of) == (40, 10, "clients")
    assert difference.mean == pytest.approx(1.0, abs=0.1)
    assert difference.low is not None
    assert difference.high is not None
    assert 0.9 < difference.low < difference.mean < difference.high < 1.1


def test_a_difference_without_skew_is_the_t_test_of_the_clients_means() -> None:
    # Mirrored clients have no skewness.
    half = np.random.default_rng(0).normal(size=(4, 4))
    values = np.concatenate([half, -half]).ravel() + 0.3
    difference = paired_difference(
        values, np.full(32, -9.0), np.repeat(np.arange(8), 4), comparisons=5
    )
    error = 0.01 * (1 - 0.5 / 8)
    theirs = ttest_1samp(values.reshape(8, 4).mean(1) + 9, 0).confidence_interval(1 - error)
    assert difference.level == pytest.approx(0.99)
    assert (difference.low, difference.high) == pytest.approx((theirs.low, theirs.high))


def test_skewness_widens_the_longer_side() -> None:
    values = np.array([0.1, 0.2, 0.15, 0.12, 0.9, 0.3]) + 5
    estimate = summary(values, range(6), better="higher")
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.mean > 1.2 * (estimate.mean - estimate.low)


def test_a_difference_of_one_example_or_one_client() -> None:
    difference = paired_difference([1.0], [0.0], [0])
    assert (difference.mean, difference.low, difference.interval_of) == (1.0, None, "none")
    values = np.random.default_rng(0).normal(size=9)
    same_client = paired_difference(values, np.zeros(9), [4] * 9)
    assert (same_client.clusters, same_client.interval_of) == (1, "examples")


def test_fewer_clusters_are_enough_for_what_is_known_to_be_normal() -> None:
    values = [0.6, 0.9, 0.7]
    assert paired_difference(values, [3.0] * 3, range(3)).low is None
    assert paired_difference(values, [3.0] * 3, range(3), fewest=2).low is not None


def test_the_exact_interval_of_a_rate() -> None:
    assert clopper_pearson(0, 24) == pytest.approx((0.0, 0.1425), abs=1e-4)  # R: binom.test(0, 24)
    assert clopper_pearson(3, 500, error=0.1) == pytest.approx((0.00164, 0.01544), abs=1e-5)
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    low, high = clopper_pearson(1.5, 8)
    assert clopper_pearson(1, 8)[0] < low < clopper_pearson(2, 8)[0]
    assert clopper_pearson(1, 8)[1] < high < clopper_pearson(2, 8)[1]


def test_a_record_survives_the_disk() -> None:
    difference = paired_difference([1.0, 2.0], [0.0, 0.0], [0, 1])
    assert Difference.model_validate_json(difference.model_dump_json()) == difference


@pytest.mark.parametrize(
    ("values", "clients", "message"),
    [
        ([], [], "statistics: there are no values. Leave the empty group out."),
        ([1.0, 2.0], [0], "statistics: 2 values, but 1 clients. Give one for each value."),
        (
            [1.0, math.inf],
            [0, 0],
            "statistics: value 1 is inf. Use a metric with finite values.",
        ),
        (
            [math.nan, 1.0],
            [0, 0],
            "statistics: value 0 is nan. Use a metric with finite values.",
        ),
    ],
)
def test_what_cannot_be_summarised_is_refused(
    values: list[float], clients: list[int], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        summary(values, clients, better="higher")
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as again:
        paired_difference(values, values, clients)
    assert str(again.value) == message


def test_paired_values_have_to_be_as_many() -> None:
    with pytest.raises(ConfigError, match="1 values, but 2 clients"):
        paired_difference([1.0, 2.0], [1.0], [0, 1])
