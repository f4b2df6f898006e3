"""What a defense costs: shares of a measure, over seeds, and whether a limit is surely kept."""

import math

import numpy as np
import pytest

from experiments.decision.answer import Cost
from experiments.decision.families import FEWEST_SEEDS
from experiments.decision.targets import costs

SEEDS = range(8)


def paid(
    limits: dict[str, float],
    here: dict[int, dict[str, float]],
    base: dict[int, dict[str, float]],
    looks: int = 1,
) -> tuple[Cost, ...]:
    """Of a model of which nothing is known before training."""
    return costs(limits, here, base, {seed: {} for seed in base}, looks)


def measured(name: str, values: list[float]) -> dict[int, dict[str, float]]:
    return {seed: {name: value} for seed, value in enumerate(values)}


def test_a_lost_accuracy_is_a_share_of_the_undefended() -> None:
    base, here = [0.5, 0.52, 0.48], [0.4, 0.421, 0.379]
    (cost,) = paid({"accuracy": 0.3}, measured("accuracy", here), measured("accuracy", base))
    assert cost.lost.mean == pytest.approx(0.2)
    assert cost.value == pytest.approx(0.4)
    assert cost.base == pytest.approx(0.5)
    assert cost.sure


def test_perplexities_are_compared_by_their_ratios() -> None:
    """One seed whose perplexities are tenfold in both trainings weighs no more than another."""
    base = [100.0, 110.0, 1000.0]
    here = [factor * value for factor, value in zip((1.9, 2.0, 2.1), base, strict=True)]
    (cost,) = paid({}, measured("perplexity", here), measured("perplexity", base))
    assert cost.lost.mean == pytest.approx(math.prod((1.9, 2.0, 2.1)) ** (1 / 3) - 1)
    assert cost.value == pytest.approx(cost.base * (1 + cost.lost.mean))
    assert cost.lost.low is not None
    assert 0 < cost.lost.low < 1
    assert cost.sure


def test_a_diverged_training_has_no_cost() -> None:
    here, base = measured("perplexity", [math.inf] * 3), measured("perplexity", [9.0] * 3)
    assert paid({"perplexity": 0.1}, here, base) == ()


@pytest.mark.parametrize(("lost", "sure"), [(0.0, True), (0.1, False), (0.3, True)])
def test_a_limit_is_surely_kept_or_surely_not_or_neither(lost: float, sure: bool) -> None:
    noise = np.random.default_rng(3).normal(0, 0.01, (2, len(SEEDS)))
    base, here = 0.5 + noise[0], 0.5 * (1 - lost) + noise[1]
    both = measured("accuracy", here.tolist()), measured("accuracy", base.tolist())
    (cost,) = paid({"accuracy": 0.1}, *both, looks=2)
    assert cost.lost.level == pytest.approx(0.975)
    assert cost.sure is sure


@pytest.mark.slow
def test_two_looks_keep_the_level() -> None:
    """A defense that loses what may be lost is surely on one side in at most 5 % of searches."""
    draws, wrong = np.random.default_rng(1), 0
    for _ in range(trials := 400):
        here, base = draws.normal(0.9, 0.05, len(SEEDS)), draws.normal(1.0, 0.05, len(SEEDS))
        wrong += any(
            cost.sure
            for few in (FEWEST_SEEDS, len(SEEDS))
            for cost in paid(
                {"loss": -0.1},
                measured("loss", here[:few].tolist()),
                measured("loss", base[:few].tolist()),
                looks=2,
            )
        )
    assert wrong <= 0.05 * trials + 3 * math.sqrt(0.05 * 0.95 * trials)


def test_eight_seeds_decide_where_three_do_not() -> None:
    """Of accuracies that scatter by a twentieth, with a true loss of nothing under a limit of 10 %.

    Three seeds decide few of these, eight nearly all.
    """
    draws, decided = np.random.default_rng(2), {FEWEST_SEEDS: 0, 8: 0}
    for _ in range(100):
        here, base = draws.normal(0.5, 0.025, len(SEEDS)), draws.normal(0.5, 0.025, len(SEEDS))
        for few in decided:
            (cost,) = paid(
                {"accuracy": 0.1},
                measured("accuracy", here[:few].tolist()),
                measured("accuracy", base[:few].tolist()),
                looks=2,
            )
            decided[few] += cost.sure
    assert decided[FEWEST_SEEDS] < 30
    assert decided[8] > 60


@pytest.mark.parametrize(
    ("start", "end", "learned"),
    [
        ({"accuracy": 0.5}, {"accuracy": 0.5}, False),
        ({"accuracy": 0.48, "mcc": 0.0}, {"accuracy": 0.52, "mcc": 0.0}, False),
        ({"accuracy": 0.1}, {"accuracy": 0.6}, True),
        ({"perplexity": 600.0}, {"perplexity": 700.0}, False),
        ({"perplexity": 600.0}, {"perplexity": 300.0}, True),
    ],
)
def test_a_model_that_learned_nothing_loses_nothing(
    start: dict[str, float], end: dict[str, float], learned: bool
) -> None:
    name = next(iter(end))
    base = dict.fromkeys(range(3), end)
    (cost,) = costs({name: 0.1}, base, base, dict.fromkeys(range(3), start))
    assert cost.learned is learned
    assert cost.is_measurable is learned  # as nothing is lost


def test_what_was_there_before_training_can_be_lost() -> None:
    base, here = {seed: {"perplexity": 600.0 + seed} for seed in range(3)}, {}
    for seed, factor in enumerate((2.9, 3.0, 3.1)):
        here[seed] = {"perplexity": factor * base[seed]["perplexity"]}
    (cost,) = costs({}, here, base, base)
    assert not cost.learned
    assert cost.is_measurable


def test_a_gain_by_chance_is_nothing_learned() -> None:
    """Accuracies of a network that chance takes up and down."""
    ends = (0.146, 0.156, 0.098, 0.124, 0.088, 0.096, 0.116, 0.136)
    starts = (0.092, 0.108, 0.104, 0.09, 0.106, 0.08, 0.13, 0.102)
    base, start = measured("accuracy", [*ends]), measured("accuracy", [*starts])
    (cost,) = costs({"accuracy": 0.1}, base, base, start)
    assert not cost.learned
