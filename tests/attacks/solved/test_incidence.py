import math

import pytest
import torch

from attacks.solved.embedding_rows import sentence


@pytest.fixture
def positions() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 16, generator=generator, dtype=torch.float64)


def test_the_order_of_tokens_follows_from_their_rows(positions: torch.Tensor) -> None:
    order, miss = sentence(positions[[3, 0, 4, 1, 2]], positions)
    assert order == [1, 3, 4, 0, 2]
    assert miss < 1e-12


@pytest.mark.parametrize("change", ["equal", "zero", "sum"])
def test_positions_that_cannot_be_told_apart_prove_nothing(
    positions: torch.Tensor, change: str
) -> None:
    """As the signs of two positions whose gradients are nearly parallel."""
    rows = {"equal": positions[1], "zero": 0 * positions[1], "sum": positions[0] + positions[1]}
    positions[3] = rows[change]
    _, miss = sentence(positions, positions)
    assert miss == math.inf
