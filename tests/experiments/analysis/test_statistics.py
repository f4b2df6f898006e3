import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from experiments.analysis.statistics import Difference, paired_difference, summary, wilson
from fedsim.errors import ConfigError


def test_mean_median_and_the_worst_tenth_in_both_directions() -> None:
    values = np.arange(1.0, 21.0)
    np.random.default_rng(0).shuffle(values)
    high = summary(values, np.arange(20), better="higher", seed=0)
    low = summary(values, np.arange(20), better="lower", seed=0)
    assert (high.n, high.clusters, high.mean, high.median) == (20, 20, 10.5, 10.5)
    assert (high.worst, low.worst) == (19.5, 1.5)
    assert summary(values[:11], [0] * 11, better="higher", seed=0).worst == pytest.approx(
        np.sort(values[:11])[-2:].mean()
    )


def test_one_example_has_no_interval() -> None:
    found = summary([3.0], [7], better="lower", seed=0)
    assert (found.n, found.mean, found.median, found.worst) == (1, 3.0, 3.0, 3.0)
    assert (found.low, found.high, found.interval_of) == (None, None, "none")


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = summary([0.25] * 6, [0, 0, 1, 1, 2, 2], better="higher", seed=0)
    assert (found.low, found.mean, found.high) == (0.25, 0.25, 0.25)


def test_clients_are_resampled_whole() -> None:
    # Within a client there is no spread, so resampling examples would give a far narrower interval.
    values, clients = np.repeat([0.0, 1.0, 2.0], 100), np.repeat([4, 1, 9], 100)
    found = summary(values, clients, better="higher", seed=0)
    assert (found.interval_of, found.clusters) == ("clients", 3)
    assert (found.low, found.high) == (0.0, 2.0)
    single = summary(values, np.zeros(300), better="higher", seed=0)
    assert (single.interval_of, single.clusters) == ("examples", 1)
    assert single.low is not None
    assert single.high is not None
    half = 1.968 * values.std(ddof=1) / math.sqrt(300)
    assert single.low == pytest.approx(1 - half, abs=0.02)
    assert single.high == pytest.approx(1 + half, abs=0.02)


def test_the_mean_is_over_examples_however_unequal_the_clients() -> None:
    found = summary([0.0] * 9 + [1.0], [0] * 9 + [1], better="higher", seed=0)
    assert found.mean == pytest.approx(0.1)
    assert (found.low, found.high) == (0.0, 1.0)


def test_names_and_pairs_are_clients_too() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    numbers = summary(values, [0, 0, 1, 2], better="higher", seed=0)
    assert summary(values, ["a", "a", "b", "c"], better="higher", seed=0) == numbers
    pairs = [(0, 5), (0, 5), (1, 5), (1, 6)]
    assert summary(values, pairs, better="higher", seed=0) == numbers


def test_the_seed_decides_and_the_order_of_rows_does_not() -> None:
    rng = np.random.default_rng(0)
    values, clients = rng.normal(size=60), np.repeat(np.arange(12), 5)
    first = summary(values, clients, better="higher", seed=0)
    assert summary(values, clients, better="higher", seed=0) == first
    assert summary(values, clients, better="higher", seed=1).low != first.low
    order = rng.permutation(60)
    shuffled = summary(values[order], clients[order], better="higher", seed=0)
    assert (shuffled.low, shuffled.high) == pytest.approx((first.low, first.high))


@pytest.mark.parametrize(("clients", "least", "most"), [(12, 0.91, 0.99), (3, 0.65, 0.82)])
def test_cover_of_the_interval(clients: int, least: float, most: float) -> None:
    # A client's examples share an effect; 3 clients cannot reach 95 %, as the docstring says.
    hits = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        effect = np.repeat(rng.normal(size=clients), 5)
        values = effect + rng.normal(size=5 * clients)
        members = np.repeat(np.arange(clients), 5)
        found = summary(values, members, better="higher", seed=seed)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    assert least <= hits / 250 <= most


def test_many_examples_of_one_client_fit_into_memory_in_blocks() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    found = summary(values, np.zeros(5000), better="higher", seed=0)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(5000), rel=0.1)


def test_share_counts_the_threshold_and_has_the_wilson_interval() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    high = summary(values, range(4), better="higher", threshold=20.0, seed=0).share
    low = summary(values, range(4), better="lower", threshold=20.0, seed=0).share
    assert high is not None
    assert low is not None
    assert (high.threshold, high.value, low.value) == (20.0, 0.75, 0.5)
    z, n, p = 1.959964, 4, 0.75
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (high.low, high.high) == pytest.approx((centre - half, centre + half), abs=1e-6)
    assert summary(values, range(4), better="higher", seed=0).share is None


def test_a_paired_difference_is_sharper_than_two_means() -> None:
    rng = np.random.default_rng(0)
    base, clients = rng.normal(size=40) * 10, np.repeat(np.arange(10), 4)
    found = paired_difference(base + 1 + 0.1 * rng.normal(size=40), base, clients)
    assert (found.n, found.clusters, found.interval_of) == (40, 10, "clients")
    assert found.mean == pytest.approx(1.0, abs=0.1)
    assert found.low is not None
    assert found.high is not None
    assert 0.9 < found.low < found.mean < found.high < 1.1


def test_a_paired_difference_of_equal_clients_is_the_t_test_of_their_means() -> None:
    rng = np.random.default_rng(0)
    values, clients = rng.normal(0.3, 1, size=24), np.repeat(np.arange(6), 4)
    found = paired_difference(values, np.zeros(24), clients, comparisons=5)
    theirs = ttest_1samp(values.reshape(6, 4).mean(1), 0)
    interval = theirs.confidence_interval(0.99)
    assert found.level == pytest.approx(0.99)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("clients", [2, 3, 12])
def test_cover_of_a_difference_holds_for_few_clients(clients: int) -> None:
    hits, rng = 0, np.random.default_rng(clients)
    members = np.repeat(np.arange(clients), 5)
    for _ in range(600):
        values = rng.normal(size=clients)[members] + rng.normal(size=5 * clients)
        found = paired_difference(values, np.zeros(5 * clients), members)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    assert 0.925 <= hits / 600 <= 0.975


def test_a_difference_without_spread_or_of_one_example() -> None:
    equal = paired_difference([1.2, 1.2], [1.0, 1.0], [0, 1])
    assert (equal.low, equal.high) == pytest.approx((0.2, 0.2))
    assert equal.p == 0.0
    assert paired_difference([1.0, 1.0], [1.0, 1.0], [0, 1]).p == 1.0
    one = paired_difference([1.0], [0.0], [0])
    assert (one.mean, one.low, one.p, one.interval_of) == (1.0, None, None, "none")
    same_client = paired_difference([1.0, 2.0], [0.0, 0.0], [4, 4])
    assert (same_client.clusters, same_client.interval_of) == (1, "examples")


def test_the_interval_of_a_rate() -> None:
    assert wilson(0, 24) == pytest.approx((0.0, 0.138), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_record_survives_the_disk() -> None:
    found = paired_difference([1.0, 2.0], [0.0, 0.0], [0, 1])
    assert Difference.model_validate_json(found.model_dump_json()) == found


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
        summary(values, clients, better="higher", seed=0)
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as again:
        paired_difference(values, values, clients)
    assert str(again.value) == message


def test_paired_values_have_to_be_as_many() -> None:
    with pytest.raises(ConfigError, match="1 values, but 2 clients"):
        paired_difference([1.0, 2.0], [1.0], [0, 1])
