"""Epsilon against closed forms that are written out here."""

import math
from itertools import pairwise

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedsim.accountant import Schedule, Turn, epsilon, noise_multiplier
from fedsim.config.federation import FederationConfig
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.errors import ConfigError
from tests.gaussian import DELTA, analytic_gaussian

PART: dict[str, object] = {"protocol": "fedavg", "batch_size": 4, "client_rows": 6}


def sampled_gaussian(rate: float, noise: float, delta: float) -> float:
    """Epsilon of one sum that holds a row with chance ``rate``."""

    # Removing a row is the harder direction: the largest of P[Y] - e^eps P[X] over sets of outputs,
    # Y from (1 - q) N(0, s^2) + q N(1, s^2) and X from N(0, s^2).
    def excess(eps: float) -> float:
        grown = (math.exp(eps) - 1 + rate) / rate
        edge = noise**2 * math.log(grown) + 0.5
        with_row = (1 - rate) * norm.sf(edge / noise) + rate * norm.sf((edge - 1) / noise)
        return float(with_row - math.exp(eps) * norm.sf(edge / noise)) - delta

    return float(brentq(excess, 1e-9, 50))


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0, 20.0])
def test_one_full_batch_is_the_analytic_gaussian(noise: float, delta: float) -> None:
    spent = epsilon(steps=1, rate=1.0, noise_multiplier=noise, delta=delta)
    assert spent == pytest.approx(analytic_gaussian(noise, delta), abs=1e-2)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_steps_on_the_same_rows_are_one_with_less_noise(noise: float) -> None:
    spent = epsilon(steps=9, rate=1.0, noise_multiplier=noise, delta=DELTA)
    assert spent == pytest.approx(analytic_gaussian(noise / 3, DELTA), abs=1e-2)


@pytest.mark.parametrize("noise", [0.1, 1.0, 4.0])
def test_nearly_every_row_in_each_batch_is_nearly_no_sampling(noise: float) -> None:
    # Leaves the closed form of the library for its privacy loss distributions.
    spent = epsilon(steps=4, rate=1 - 1e-9, noise_multiplier=noise, delta=DELTA)
    assert spent == pytest.approx(analytic_gaussian(noise / 2, DELTA), rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("rate", [0.02, 0.3])
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_one_sampled_step_is_the_closed_form(rate: float, noise: float) -> None:
    spent = epsilon(steps=1, rate=rate, noise_multiplier=noise, delta=DELTA)
    assert spent == pytest.approx(sampled_gaussian(rate, noise, DELTA), abs=1e-2)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.25, 1.0, 30), (0.3, 0.6, 10), (0.02, 1.2, 500)]
)
def test_many_sampled_steps_are_what_another_library_says(
    rate: float, noise: float, steps: int
) -> None:
    # Opacus adds privacy loss variables up by its own FFT (Gopi et al. 2021); ours come from
    # dp-accounting. Its error is bounded by eps_error.
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(noise, rate, steps)]
    expected = other.get_epsilon(DELTA, eps_error=1e-3)
    spent = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=DELTA)
    assert spent == pytest.approx(expected, abs=1e-2)


def test_no_noise_protects_nothing_and_no_step_costs_nothing() -> None:
    assert epsilon(steps=3, rate=0.1, noise_multiplier=0.0, delta=DELTA) == math.inf
    assert epsilon(steps=0, rate=0.1, noise_multiplier=0.0, delta=DELTA) == 0.0
    assert epsilon(steps=3, rate=0.1, noise_multiplier=1e-5, delta=DELTA) > 1e9


@pytest.mark.parametrize("rate", [1e-3, 0.5])
def test_epsilon_is_zero_where_delta_covers_all_that_the_noise_leaves(rate: float) -> None:
    distance = rate * (2 * norm.cdf(1 / (2 * 50)) - 1)  # the total variation
    assert epsilon(steps=1, rate=rate, noise_multiplier=50, delta=1.01 * distance) == 0.0
    assert epsilon(steps=1, rate=rate, noise_multiplier=50, delta=0.9 * distance) > 0.0


def test_epsilon_grows_with_steps_and_rate_and_falls_with_noise() -> None:
    def found(steps: int = 5, rate: float = 0.1, noise: float = 1.0) -> float:
        return epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=DELTA)

    assert found() < found(steps=6) < found(steps=60)
    assert found() < found(rate=0.2) < found(rate=1.0)
    assert found(noise=1.1) < found() < found(noise=0.05) < found(noise=5e-4)


@pytest.mark.some(2)
@pytest.mark.parametrize("target", [0.5, 8.0, 60.0])
@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (30, 0.125)])
def test_noise_for_a_budget_spends_it_and_no_more(target: float, steps: int, rate: float) -> None:
    noise = noise_multiplier(steps=steps, rate=rate, target=target, delta=DELTA)
    back = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=DELTA)
    assert back == pytest.approx(target, abs=1e-2)
    assert back <= target


def test_a_budget_that_no_noise_meets_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        noise_multiplier(steps=1, rate=1.0, target=1e30, delta=DELTA)
    assert str(caught.value) == (
        "epsilon: no noise between 1e-06 and 1e+06 times the clipping norm gives 1e+30 in 1 steps "
        "at delta 1e-05. Set noise_multiplier, or another epsilon."
    )


@pytest.mark.parametrize(
    ("options", "rows", "rate", "steps"),
    [
        ({"batch_size": 4}, 16, 0.25, 3),
        ({"batch_size": 4}, 3, 1.0, 3),
        ({"batch_size": 4, "client_rows": 2}, 16, 0.25, 3),
        ({"protocol": "fedavg", "batch_size": 4, "local_epochs": 2}, 10, 0.4, 3 * 2 * 3),
        ({"protocol": "fedavg", "batch_size": 4, "local_steps": 5}, 10, 0.4, 3 * 5),
        ({"protocol": "fedavg", "batch_size": 4, "client_rows": 6}, 12, 4 / 12, 3 * 2),
        ({"protocol": "fedavg", "batch_size": 8, "client_rows": 6}, 12, 6 / 12, 3),
        # One pass is the begin of one over all rows; a second one is over the same rows again.
        ({**PART, "local_steps": 2}, 12, 4 / 12, 3 * 2),
        ({**PART, "local_steps": 3}, 12, 4 / 6, 3 * 3),
        ({**PART, "local_epochs": 2}, 12, 4 / 6, 3 * 2 * 2),
        ({**PART, "local_epochs": 2}, 5, 4 / 5, 3 * 2 * 2),
        ({**PART, "local_epochs": 2, "batch_size": 8}, 12, 1.0, 3 * 2),
    ],
)
def test_a_schedule_counts_steps_and_chances(
    options: dict[str, object], rows: int, rate: float, steps: int
) -> None:
    federation = FederationConfig.model_validate({"rounds": 3, **options})
    found = Schedule.of(federation, rows)
    assert (found.rate, found.steps, found.rounds) == (rate, steps, 3)


@pytest.mark.parametrize(("passes", "rounds"), [(10, 1), (2, 3)])
def test_passes_over_the_same_part_of_the_rows_cost_what_they_tell(
    passes: int, rounds: int
) -> None:
    """All 8 of 80 rows in each step: a row is in all steps of a round or in none of them."""
    from opacus.accountants import PRVAccountant

    options = {"protocol": "fedavg", "batch_size": 8, "client_rows": 8, "local_epochs": passes}
    federation = FederationConfig.model_validate({"rounds": rounds, **options})
    defense = DpSgd(clip=1.0, noise_multiplier=1.0, delta=DELTA)
    schedule = Schedule.of(federation, 80)
    spent = defense.epsilon_after(schedule)
    # The sums of a round tell what one with less noise tells, and one in ten rows is in it.
    if rounds == 1:
        reference = sampled_gaussian(0.1, 1 / math.sqrt(passes), DELTA)
        assert reference == pytest.approx(13.80, abs=1e-2)
    else:
        other = PRVAccountant()
        other.history = [(1 / math.sqrt(passes), 0.1, rounds)]
        reference = other.get_epsilon(DELTA, eps_error=1e-3)
    assert spent == pytest.approx(reference, abs=1e-2)
    budget = DpSgd(clip=1.0, epsilon=reference, delta=DELTA).fit(schedule)
    assert budget.noise_multiplier == pytest.approx(1.0, rel=1e-2)


def test_nearly_all_rows_in_a_round_cost_nearly_what_all_do() -> None:
    found = []
    for part in (79, 80):
        options = {"protocol": "fedavg", "batch_size": 8, "client_rows": part, "local_epochs": 4}
        schedule = Schedule.of(FederationConfig.model_validate(options), 80)
        found.append(DpSgd(clip=1.0, noise_multiplier=1.0).epsilon_after(schedule))
    assert found[1] < found[0] < 1.05 * found[1]


@pytest.mark.parametrize(
    ("options", "rows", "chance", "visits"),
    [
        ({"batch_size": 4, "client_rows": 2, "local_epochs": 3}, 16, 4 / 16, 1),
        ({"batch_size": 4}, 3, 1.0, 1),
        ({"protocol": "fedavg", "batch_size": 4, "local_epochs": 2}, 10, 1.0, 2),
        ({**PART, "local_epochs": 2}, 12, 6 / 12, 2),
        ({**PART, "local_epochs": 2}, 5, 1.0, 2),
        ({**PART, "local_steps": 1}, 12, 4 / 12, 1),
        ({**PART, "local_steps": 5}, 12, 6 / 12, 3),
    ],
)
def test_the_turn_of_a_row_in_a_round(
    options: dict[str, object], rows: int, chance: float, visits: int
) -> None:
    assert Turn.of(FederationConfig.model_validate(options), rows) == Turn(chance, visits)


def test_epsilon_falls_with_noise_where_its_exponential_is_subnormal() -> None:
    noises = (0.087, 0.088, 0.0885, 0.0886, 0.0887)
    found = [epsilon(steps=200, rate=1 / 78, noise_multiplier=z, delta=1e-5) for z in noises]
    assert all(small > large for small, large in pairwise(found))
    assert 739 < found[0] < 740
    assert 709 < found[-1] < 710
