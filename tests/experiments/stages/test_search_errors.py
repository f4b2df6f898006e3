"""Whether a search missed the private rows, or the update does not tell them from the guess."""

from typing import Any

import pytest

from experiments.pipeline import execute
from experiments.stages.search_errors import SearchErrors, search_errors
from tests.apps.cases import IMAGES, TEXT, Make


def of_run(make_run: Make, federation: Any = None, **options: Any) -> list[SearchErrors]:
    short = {"name": "bayes", "steps": 3, "orders": 1, "evaluations": 3}
    attacks = [short, {"name": "ridge"}, {"name": "prior_only"}]
    once = {"rounds": 1, **(federation or {})}
    run = make_run(IMAGES, attacks=attacks, federation=once, **options)
    execute(run, ("simulate", "attack"), quiet=True)
    return [e for cell in run.cells for e in search_errors(cell)]


@pytest.mark.slow
def test_three_steps_of_a_search_miss_what_the_update_tells(make_run: Make) -> None:
    (errors,) = of_run(make_run)  # ridge names no objective, and prior_only has none
    assert (errors.attack, errors.unit) == ("bayes", "nats")
    assert errors.recovered == 0
    assert errors.missed == errors.errors > 0
    assert errors.excess is not None
    assert errors.excess > 1000


@pytest.mark.slow
def test_under_noise_that_hides_all_the_guess_is_as_likely(make_run: Make) -> None:
    (errors,) = of_run(make_run, defenses=[{"name": "gaussian_noise", "std": 100.0}])
    assert errors.missed > errors.errors == 0
    assert errors.excess is not None
    assert errors.excess < 0  # the private rows are the rougher images


@pytest.mark.slow
def test_local_steps_are_taken_again_in_the_order_of_first_use(make_run: Make) -> None:
    federation = {"protocol": "fedavg", "local_steps": 2, "batch_size": 1}
    (errors,) = of_run(make_run, federation=federation)
    assert errors.missed == errors.errors > 0
    assert not of_run(make_run, folder="epochs", federation={**federation, "local_steps": 3})


def of_texts(make_run: Make, defense: dict[str, Any], **options: Any) -> SearchErrors:
    run = make_run(
        TEXT,
        attacks=[{"name": "span", **options}],
        defenses=[defense],
        federation={"rounds": 1},
        auxiliary={"split": "public", "rows": 40},
    )
    execute(run, ("simulate", "attack"), quiet=True)
    (errors,) = (e for cell in run.cells for e in search_errors(cell))
    assert (errors.attack, errors.unit) == ("span", "nats")
    return errors


def test_a_search_of_texts_that_is_stopped_misses_what_the_update_tells(make_run: Make) -> None:
    errors = of_texts(make_run, {"name": "gaussian_noise", "std": 1e-3}, work=1)
    assert errors.missed == errors.errors == 3
    assert errors.excess is not None
    assert errors.excess > 1000


def test_an_update_of_noise_tells_no_text_from_frequent_words(make_run: Make) -> None:
    errors = of_texts(make_run, {"name": "gaussian_noise", "std": 10.0})
    assert errors.missed == 3
    assert errors.errors == 0
    assert errors.excess is not None
    assert errors.excess < 0  # rarer words take more nats to name
