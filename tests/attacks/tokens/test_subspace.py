"""The span of a layer's inputs, found in the gradient of its weight."""

import pytest
import torch
from torch import Tensor

from attacks.tokens.subspace import Subspace, span


def gradient(tokens: int, width: int = 32, outputs: int = 96) -> tuple[Tensor, Tensor]:
    """Inputs ``(token, width)`` and ``sum_t x_t d_t^T``, float64."""
    rng = torch.Generator().manual_seed(tokens)
    inputs = torch.randn(tokens, width, generator=rng, dtype=torch.float64)
    slopes = torch.randn(tokens, outputs, generator=rng, dtype=torch.float64)
    return inputs, inputs.T @ (slopes * torch.logspace(0, -4, tokens)[:, None])


@pytest.mark.parametrize("outputs", [20, 32, 96])
@pytest.mark.parametrize("tokens", [1, 7, 15])
def test_inputs_lie_in_the_span_and_others_do_not(tokens: int, outputs: int) -> None:
    inputs, exact = gradient(tokens, outputs=outputs)
    for found in (span(exact), span(exact.float().double())):
        assert (found.rank, found.width, found.full) == (tokens, 32, False)
        assert float(found.distance(inputs).max()) < 1e-2
        rng = torch.Generator().manual_seed(99)
        others = torch.randn(200, 32, generator=rng, dtype=torch.float64)
        expected = (1 - tokens / 32) ** 0.5
        assert float(found.distance(others).mean()) == pytest.approx(expected, abs=0.1)
        rough = found.rough_distance(others.float()).double()
        torch.testing.assert_close(rough, found.distance(others), atol=1e-3, rtol=0)
    assert float(span(exact).distance(inputs).max()) < 1e-9


def test_as_many_tokens_as_the_width_fill_it() -> None:
    for tokens in (31, 32, 50):
        assert span(gradient(tokens)[1]).full


def test_noise_of_known_size_is_cut_off() -> None:
    inputs, exact = gradient(5)
    rng = torch.Generator().manual_seed(7)
    noise = 1e-6 * torch.randn(exact.shape, generator=rng, dtype=torch.float64)
    assert span(exact + noise, noise=1e-6).rank == 5
    # Without its size the largest fall of the singular values tells.
    blind = span(exact + noise)
    assert blind.rank == 5
    assert float(blind.distance(inputs).max()) < 1e-2
    assert span(exact + 1e3 * noise).full


@pytest.mark.parametrize("tokens", [3, 20])
def test_few_directions_bound_the_sine_from_below(tokens: int) -> None:
    inputs, exact = gradient(tokens)
    subspace = span(exact)
    assert subspace.outside is not None
    rng = torch.Generator().manual_seed(98)
    others = torch.cat([inputs, torch.randn(200, 32, generator=rng, dtype=torch.float64)])
    sines, least = subspace.distance(others), subspace.least_distance(others)
    assert bool((least <= sines + 1e-9).all())
    assert float(least[tokens:].min()) > 10 * float(sines[:tokens].max())
    bare = Subspace(subspace.basis, subspace.most)  # what the basis alone says
    torch.testing.assert_close(sines, bare.distance(others), atol=1e-9, rtol=0)
