"""Factors of a gradient of few tokens, and the same gradient behind noise."""

import pytest
import torch

from attacks.texts.low_rank import factor, shrink
from tests.attacks.texts.cases import low, normal


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
@pytest.mark.parametrize("rank", [5, 8, 15])
def test_factors_of_a_lower_rank_are_exact(shape: tuple[int, int], rank: int) -> None:
    matrix = low(*shape, 5)
    factors = factor(matrix, rank)
    assert factors is not None
    left, right = factors
    assert (left.shape, right.shape) == ((shape[0], rank), (shape[1], rank))
    torch.testing.assert_close(left @ right.T, matrix, rtol=0, atol=1e-12 * float(matrix.norm()))


def test_no_factors_of_a_higher_rank() -> None:
    assert factor(low(40, 30, 5), 4) is None
    matrix = low(40, 30, 5)
    noise = normal(40, 30, seed=7)
    assert factor(matrix + 1e-4 * noise * matrix.norm() / noise.norm(), 8) is None


def test_no_factors_that_save_nothing() -> None:
    assert factor(low(40, 30, 5), 15) is not None
    assert factor(low(40, 30, 5), 16) is None
    assert factor(low(3, 500, 1), 2) is None


def test_rounding_of_a_float32_gradient_is_no_rank() -> None:
    matrix = low(40, 30, 5)
    rounded = matrix.float().double()
    assert torch.linalg.matrix_rank(rounded) == 30
    factors = factor(rounded, 8)
    assert factors is not None
    assert (factors[0] @ factors[1].T - matrix).norm() < 1e-6 * matrix.norm()


def test_factors_of_zero_are_zero() -> None:
    factors = factor(torch.zeros(20, 20, dtype=torch.float64), 3)
    assert factors is not None
    assert torch.equal(factors[0] @ factors[1].T, torch.zeros(20, 20, dtype=torch.float64))


def test_factors_draw_from_a_generator_of_their_own() -> None:
    matrix, state = low(40, 30, 5), torch.get_rng_state()
    first, second = factor(matrix, 8), factor(matrix, 8)
    assert first is not None
    assert second is not None
    assert torch.equal(first[0], second[0])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(90, 60), (60, 90)])
@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0])
def test_shrunk_is_nearer_than_noisy_and_than_truncated(
    shape: tuple[int, int], noise: float
) -> None:
    rank = 3
    matrix = low(*shape, rank)
    seen = matrix + noise * normal(*shape, seed=5)
    left, values, right = torch.linalg.svd(seen, full_matrices=False)
    truncated = (left[:, :rank] * values[:rank]) @ right[:rank]
    error = (shrink(seen) - matrix).norm()
    assert error <= (truncated - matrix).norm()
    # A matrix of rank r has r (a + b - r) free coordinates of a * b.
    share = (rank * (sum(shape) - rank) / (shape[0] * shape[1])) ** 0.5
    assert error < 1.2 * share * (seen - matrix).norm()


@pytest.mark.some(3)
@pytest.mark.parametrize("strength", [1.2, 1.5, 3.0])
def test_shrunk_values_are_the_best_for_these_directions(strength: float) -> None:
    """A direction weaker than 1 cannot be told from noise."""
    rows, columns, noise = 400, 300, 0.3
    ratios = []
    for seed in range(4):
        one, other = normal(rows, 1, seed=seed), normal(1, columns, seed=seed + 10)
        size = strength * noise * (rows * columns) ** 0.25
        matrix = size * (one / one.norm()) @ (other / other.norm())
        seen = matrix + noise * normal(rows, columns, seed=seed + 20)
        left, _, right = torch.linalg.svd(seen, full_matrices=False)
        best = left[:, 0] @ matrix @ right[0]
        ratios.append(float(torch.linalg.svdvals(shrink(seen))[0] / best))
    assert sum(ratios) / 4 == pytest.approx(1, abs=0.1 if strength < 2 else 0.03), ratios


def test_shrinking_without_noise_changes_nothing() -> None:
    for matrix in (low(40, 30, 5), low(30, 40, 14), torch.zeros(4, 3, dtype=torch.float64)):
        torch.testing.assert_close(shrink(matrix), matrix)


def test_a_matrix_of_full_rank_keeps_what_is_more_than_the_noise() -> None:
    matrix = low(60, 50, 50)
    assert (shrink(matrix) - matrix).norm() > 0.3 * matrix.norm()
    torch.testing.assert_close(shrink(matrix, 0.0), matrix)
    noise = 0.5
    seen = matrix + noise * normal(60, 50, seed=5)
    bounded = (shrink(seen, noise**2) - matrix).norm()
    assert bounded < 0.5 * (shrink(seen) - matrix).norm()
    assert bounded < 1.1 * (seen - matrix).norm()
    # A bound beyond what is measured changes nothing.
    assert torch.equal(shrink(seen, 1e9), shrink(seen))


@pytest.mark.parametrize("shape", [(300, 200), (200, 200), (50, 400)])
@pytest.mark.parametrize("noise", [1e-6, 0.5])
def test_next_to_nothing_is_left_of_noise_alone(shape: tuple[int, int], noise: float) -> None:
    matrix = noise * normal(*shape)
    assert shrink(matrix).norm() < 0.05 * matrix.norm()


def test_shrinking_commutes_with_scale_and_transposition() -> None:
    seen = low(50, 30, 2) + 0.5 * normal(50, 30, seed=5)
    expected = shrink(seen)
    torch.testing.assert_close(shrink(1e-4 * seen), 1e-4 * expected)
    torch.testing.assert_close(shrink(seen.T), expected.T)
