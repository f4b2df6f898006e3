"""Which coordinates pruning keeps."""

import pytest
import torch

from fedsim.defenses.prune import Prune, largest
from tests.defenses.cases import rng, update


def test_prune_global_ranks_all_tensors_together_and_tensor_each_alone() -> None:
    together = Prune(fraction=0.5).on_update(update(), rng())
    assert together["a"].tolist() == [[4.0, 0.0], [0.0, 0.0]]
    assert together["b"].tolist() == [-30.0, 10.0, 20.0, 0.0]
    alone = Prune(fraction=0.5, scope="tensor").on_update(update(), rng())
    assert alone["a"].tolist() == [[4.0, 0.0], [0.0, 2.0]]
    assert alone["b"].tolist() == [-30.0, 0.0, 20.0, 0.0]


@pytest.mark.parametrize(
    ("size", "fraction", "kept"),
    [
        (10, 0.9, 1),
        (1000, 0.99, 10),
        (10, 0.999, 1),
        (10, 0.0, 10),
        (15_826, 0.99, 158),
        (7, 0.5, 4),
    ],
)
def test_prune_keeps_the_nearest_whole_number_and_at_least_one(
    size: int, fraction: float, kept: int
) -> None:
    value = torch.randn(size, generator=rng())
    pruned = Prune(fraction=fraction).on_update({"w": value}, rng())["w"]
    expected = value.abs().argsort(descending=True)[:kept].sort().values
    assert pruned.nonzero().flatten().tolist() == expected.tolist()
    assert torch.equal(pruned[expected], value[expected])


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    values = torch.tensor([1.0, -2.0, 2.0, 2.0, -2.0, 3.0, 0.0])
    assert largest(values, 3).nonzero().flatten().tolist() == [1, 2, 5]
    assert largest(torch.zeros(5), 2).nonzero().flatten().tolist() == [0, 1]


@pytest.mark.slow
def test_prune_takes_tensors_too_large_for_the_quantile_of_older_torch() -> None:
    value = torch.arange(17_000_000, dtype=torch.float64)
    pruned = Prune(fraction=0.999).on_update({"w": value}, rng())["w"]
    assert pruned.count_nonzero() == 17_000
    assert pruned[-17_000:].count_nonzero() == 17_000


def test_prune_of_random_coordinates_keeps_a_share_whatever_their_size() -> None:
    value = torch.arange(1.0, 10_001)
    pruned = Prune(fraction=0.9, keep="random").on_update({"w": value}, rng())["w"]
    kept = pruned != 0
    assert torch.equal(pruned[kept], value[kept])
    assert kept.sum().item() == pytest.approx(1000, abs=4 * 30)
    assert value[kept].mean().item() == pytest.approx(5000, rel=0.06)


def test_prune_surrogate_is_the_pruning_with_a_constant_mask() -> None:
    value = torch.tensor([3.0, -1.0, 2.0, 0.5], requires_grad=True)
    surrogate = Prune(fraction=0.5).surrogate({"w": value})["w"]
    assert surrogate.tolist() == [3.0, 0.0, 2.0, 0.0]
    (slope,) = torch.autograd.grad(surrogate.square().sum(), value)
    assert slope.tolist() == [6.0, 0.0, 4.0, 0.0]
