"""Readings of received tensors, and the signal that stands out of their noise."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import completed, spectrum
from benchmarks.treatments import int8

RANK = 6


def low_rank() -> Tensor:
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(64, RANK, generator=rng, dtype=torch.float64)
    return left @ torch.randn(RANK, 160, generator=rng, dtype=torch.float64)


def largest(value: Tensor, share: float) -> Tensor:
    least = value.abs().quantile(1 - share)
    return torch.where(value.abs() >= least, value, 0.0)


def a_random_half(value: Tensor) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return value * (torch.rand(value.shape, generator=rng) < 0.5)


def error(matrix: Tensor, truth: Tensor) -> float:
    """Sine of the largest angle between the spans of the two."""
    basis = torch.linalg.svd(truth, full_matrices=False)[0][:, :RANK]
    seen = spectrum(matrix, RANK).basis
    assert seen.shape[1] == RANK
    return float(torch.linalg.svdvals(basis - seen @ (seen.T @ basis))[0])


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noise_and_turned_directions_are_estimated(noise: float) -> None:
    truth = low_rank()
    rng = torch.Generator().manual_seed(2)
    seen = spectrum(truth + noise * torch.randn(64, 160, generator=rng).double(), 40)
    assert seen.rank == RANK
    assert seen.noise == pytest.approx(noise, rel=0.05)
    basis = torch.linalg.svd(truth)[0][:, :RANK]
    real = (basis.T @ seen.basis).square().sum(0)
    torch.testing.assert_close(seen.cosines, real, atol=0.02, rtol=0)


def test_pure_noise_has_no_direction() -> None:
    rng = torch.Generator().manual_seed(3)
    assert spectrum(torch.randn(64, 160, generator=rng), 40).rank == 0


def test_what_was_sent_is_told_from_the_values() -> None:
    truth = low_rank()
    assert read(truth).complete
    assert read(int8(truth)).complete
    signs = read(truth.sign())
    assert bool(((signs.lower <= truth) & (truth <= signs.upper)).all())
    assert not signs.complete
    sent = largest(truth, 0.3)
    top = read(sent)
    inside = (top.lower <= truth) & (truth <= top.upper)
    # A row or column without any entry is taken for zeros.
    assert bool(inside[sent.any(1)][:, sent.any(0)].all())
    assert float(top.upper[sent == 0].max()) == float(sent[sent != 0].abs().min())
    half = read(a_random_half(truth))
    assert bool(half.upper[a_random_half(truth) == 0].isinf().all())
    for optimizer in ("adamw", "adafactor"):
        assert not read(truth, optimizer).complete


def test_zero_rows_and_columns_are_zeros() -> None:
    truth = low_rank()
    truth[3], truth[:, 5] = 0, 0
    assert read(truth).complete


@pytest.mark.parametrize(
    ("sent", "gain"), [(a_random_half, 20.0), (lambda value: largest(value, 0.3), 1.5)]
)
def test_completion_brings_the_span_nearer(sent: Callable[[Tensor], Tensor], gain: float) -> None:
    truth = low_rank()
    received = sent(truth)
    before, after = error(received, truth), error(completed(read(received), RANK), truth)
    assert after < before / gain


def test_completed_signs_stay_signs() -> None:
    truth = low_rank()
    filled = completed(read(truth.sign()), RANK)
    assert bool((filled * truth.sign() >= 0).all())
    # Magnitudes are recovered as well: signs alone have a cosine of .8 with a normal variable.
    before = torch.cosine_similarity(truth.sign().flatten(), truth.flatten(), dim=0)
    after = torch.cosine_similarity(filled.flatten(), truth.flatten(), dim=0)
    assert float(1 - after) < float(1 - before)


def test_many_equal_eigenvalues_are_no_error() -> None:
    value = torch.zeros(64, 160)
    value[0, 0] = 1.0
    reading = Reading(value, value - 1.0, value + 1.0)
    assert bool(completed(reading, 8).isfinite().all())


def test_a_tall_matrix_has_the_directions_of_a_wide_one() -> None:
    rng = torch.Generator().manual_seed(0)
    tall = torch.randn(90, 4, generator=rng) @ torch.randn(4, 30, generator=rng)
    tall = tall + 0.1 * torch.randn(90, 30, generator=rng)
    found, wide = spectrum(tall, 10), spectrum(tall.T, 10)
    basis = torch.linalg.svd(tall.double()).U[:, : found.rank]
    assert found.rank == wide.rank == 4
    torch.testing.assert_close((basis.T @ found.basis).abs(), torch.eye(4, dtype=torch.float64))
    assert bool((found.cosines < wide.cosines).all())
