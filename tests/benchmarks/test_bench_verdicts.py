"""The judge on simulated scores: level, power and coverage, in few runs."""

import pytest

from benchmarks.bench_verdicts import READ, called, covered
from benchmarks.verdict_draws import NULLS

RUNS = 25


@pytest.mark.some(9)
@pytest.mark.parametrize("kind", NULLS)
@pytest.mark.parametrize(("attacks", "clients"), [(1, 16), (5, 8)])
def test_attacks_that_read_nothing_are_hardly_called(kind: str, attacks: int, clients: int) -> None:
    assert called(kind, clients, attacks, RUNS) <= 6  # of .08 more than 6 have a chance of .004


@pytest.mark.parametrize("attacks", [1, 5])
def test_a_readable_twentieth_of_400_clients_is_found(attacks: int) -> None:
    assert called(READ, 400, attacks, 5) == 5


@pytest.mark.slow
@pytest.mark.parametrize("clients", [8, 64])
def test_bounds_cover(clients: int) -> None:
    assert min(covered(clients, RUNS)) >= RUNS - 5  # of .94 fewer have a chance of .004
