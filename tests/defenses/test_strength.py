"""The option by which a defense is searched."""

import math

import pytest

from fedsim.config.build import build
from fedsim.defenses import DEFENSES
from fedsim.defenses.strength import Strength
from tests.contract_cases import DEFENSE_CASES

FIXED = {"none", "sign", "dp_server", "error_feedback", "freeze_embeddings"}


@pytest.mark.parametrize("name", DEFENSES)
def test_every_value_of_a_range_builds(name: str) -> None:
    made = build(DEFENSES, {"name": name, **DEFENSE_CASES[name]}, "defense")
    if (strength := made.strength) is None:
        assert name not in {"gaussian_noise", "prune", "clip", "dp_sgd", "dp_client"}
        return
    assert name not in FIXED
    values = strength.values(15)
    assert len(values) > 10
    assert values[0] == pytest.approx(strength.weakest)
    assert values[-1] == pytest.approx(strength.strongest)
    rising = strength.strongest > strength.weakest
    assert list(values) == sorted(values, reverse=not rising)
    for value in values:
        table = {"name": name, **DEFENSE_CASES[name], strength.option: value}
        assert build(DEFENSES, table, "defense").strength == strength


def test_epsilon_is_searched_where_it_is_given() -> None:
    table = {"name": "dp_sgd", "clip": 1.0, "epsilon": 3.0}
    found = build(DEFENSES, table, "defense").strength
    assert found is not None
    assert found.option == "epsilon"
    assert found.weakest > found.strongest


def test_scales() -> None:
    factors = Strength("std", 0.001, 1.0).values(4)
    assert factors == (0.001, 0.01, 0.1, 1.0)
    assert Strength("std", 0.001, 0.1).values(1) == (0.01,)
    assert Strength("p", 0.2, 0.8, "linear").values(4) == (0.2, 0.4, 0.6, 0.8)
    assert Strength("fraction", 0.9, 0.9999, "rest").values(4) == (0.9, 0.99, 0.999, 0.9999)
    assert Strength("levels", 4, 1, whole=True).values(9) == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("weakest", "strongest", "scale"),
    [(0, 1, "log"), (1, 1, "log"), (0.5, 1, "rest"), (0.1, math.nan, "linear"), (1, 1, "linear")],
)
def test_no_range(weakest: float, strongest: float, scale: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        Strength("option", weakest, strongest, scale)  # type: ignore[arg-type]
