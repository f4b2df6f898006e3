"""Published brackets: no attack is above its bound, in their own runs and in the matrices."""

from itertools import product

import pytest

from docs.measured import Row, read

OWN = ("brackets-lenet", "brackets-text", "brackets-resnet")
SAME = {  # a row of the LeNet matrix -> the same defense in the brackets
    "noise 0.01": "Gaussian noise (std=0.01)",
    "noise 0.1": "Gaussian noise (std=0.1)",
    "pruning 0.999": "pruning (fraction=0.999)",
}


def values(name: str, measure: str) -> dict[str, Row]:
    rows = read(name).rows
    return {row.setting["defense"]: row for row in rows if row.measure == measure}


@pytest.mark.parametrize("name", OWN)
def test_what_is_reached_is_below_what_can_be(name: str) -> None:
    least = values(name, "at least")
    bounded = 0
    for measure in ("at most", "at most if Gaussian"):
        for defense, most in values(name, measure).items():
            low = least[defense].mean
            assert low is not None
            assert most.mean is not None
            assert low <= most.mean, defense
            bounded += 1
    assert bounded


def test_the_matrix_is_below_the_bounds_of_the_same_defenses() -> None:
    bounds = values("brackets-lenet", "at most if Gaussian")
    for (row, same), how in product(SAME.items(), ("oblivious, dB", "adaptive, dB")):
        reached, most = values("defense-matrix-lenet", how)[row].mean, bounds[same].mean
        assert reached is not None
        assert most is not None
        assert reached < most
