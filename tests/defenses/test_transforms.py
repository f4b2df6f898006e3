import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedsim.defenses.base import StagedDefense
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.prune import Prune, largest
from fedsim.defenses.sign import Sign
from fedsim.types import Tensors

STAGED = [
    GaussianNoise(std=0.1),
    Prune(fraction=0.5),
    Prune(fraction=0.5, keep="random"),
    Sign(),
    Sign(scale="mean"),
]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def update() -> Tensors:
    return {
        "a": torch.tensor([[4.0, -1.0], [0.0, 2.0]]),
        "steps": torch.tensor(7),
        "b": torch.tensor([-30.0, 10.0, 20.0, 0.5]),
    }


@pytest.mark.parametrize("defense", STAGED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_names_shapes_dtypes_and_integers_stay(defense: StagedDefense, dtype: torch.dtype) -> None:
    given = {name: v.to(dtype) if v.is_floating_point() else v for name, v in update().items()}
    kept = {name: value.clone() for name, value in given.items()}
    for result in (defense.on_update(given, rng()), defense.surrogate(given)):
        assert list(result) == list(given)
        assert {n: (v.dtype, v.shape) for n, v in result.items()} == {
            n: (v.dtype, v.shape) for n, v in given.items()
        }
        assert torch.equal(result["steps"], torch.tensor(7))
    assert all(torch.equal(given[name], kept[name]) for name in given)


@pytest.mark.parametrize("defense", STAGED)
def test_the_stage_says_which_hook_works(defense: StagedDefense) -> None:
    sample = type(defense)(**{**vars(defense), "stage": "sample"})
    given = update()
    assert defense.on_gradient(given, rng()) is given
    assert sample.on_update(given, rng()) is given
    ours, theirs = defense.on_update(given, rng()), sample.on_gradient(given, rng())
    assert not torch.equal(ours["a"], given["a"])
    assert all(torch.equal(ours[name], theirs[name]) for name in given)
    assert (defense.per_example, sample.per_example) == (False, True)


def test_noise_has_the_standard_deviation_and_depends_on_the_generator_alone() -> None:
    given = {"w": torch.full((200, 200), 3.0), "b": torch.zeros(10_000)}
    first = GaussianNoise(std=0.25).on_update(given, rng(1))
    noise = torch.cat([(first[name] - given[name]).flatten() for name in given])
    assert noise.mean().item() == pytest.approx(0.0, abs=4 * 0.25 / math.sqrt(50_000))
    assert noise.std().item() == pytest.approx(0.25, rel=0.02)
    again = GaussianNoise(std=0.25).on_update(given, rng(1))
    other = GaussianNoise(std=0.25).on_update(given, rng(2))
    assert torch.equal(first["w"], again["w"])
    assert not torch.equal(first["w"], other["w"])
    assert GaussianNoise(std=0.25).surrogate(given) is given


def test_sample_noise_shrinks_with_the_root_of_the_batch() -> None:
    defense, source = GaussianNoise(std=0.5, stage="sample"), rng()
    zero = {"w": torch.zeros(20_000)}
    mean = torch.stack([defense.on_gradient(zero, source)["w"] for _ in range(4)]).mean(0)
    assert mean.std().item() == pytest.approx(0.25, rel=0.03)


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


def test_sign_of_zero_is_zero_and_the_mean_scale_is_per_tensor() -> None:
    plain = Sign().on_update(update(), rng())
    assert plain["a"].tolist() == [[1.0, -1.0], [0.0, 1.0]]
    scaled = Sign(scale="mean").on_update(update(), rng())
    assert scaled["a"].tolist() == [[1.75, -1.75], [0.0, 1.75]]
    assert scaled["b"].abs().tolist() == [15.125] * 4


def test_untouched_rows_of_an_embedding_stay_readable_under_sign() -> None:
    table = nn.Embedding(6, 3)
    loss = table(torch.tensor([1, 4])).square().sum()
    sent = Sign().on_update({"w": torch.autograd.grad(loss, table.weight)[0]}, rng())["w"]
    assert sent.any(dim=1).nonzero().flatten().tolist() == [1, 4]


def test_sign_surrogate_is_tanh_at_the_median_of_the_magnitudes_that_are_not_zero() -> None:
    # Magnitudes over both tensors: 0.5 1 2 4 10 20 30, and one zero that does not count.
    expected = torch.tanh(torch.tensor([-30.0, 10.0, 20.0, 0.5]) / 4)
    torch.testing.assert_close(Sign().surrogate(update())["b"], expected)
    narrow = Sign(tau=1e-6).surrogate(update())
    assert torch.equal(narrow["a"], Sign().on_update(update(), rng())["a"])
    zero = Sign().surrogate({"w": torch.zeros(3)})["w"]
    assert zero.tolist() == [0.0, 0.0, 0.0]


def test_sign_surrogate_derivative_is_that_of_tanh() -> None:
    value = torch.tensor([0.3, -0.8], requires_grad=True)
    (slope,) = torch.autograd.grad(Sign(tau=2.0).surrogate({"w": value})["w"].sum(), value)
    torch.testing.assert_close(slope, (1 - torch.tanh(value.detach() / 2) ** 2) / 2)


@pytest.mark.parametrize("defense", STAGED)
def test_surrogates_run_under_vmap_of_grad(defense: StagedDefense) -> None:
    def energy(value: Tensor) -> Tensor:
        result: Tensor = defense.surrogate({"w": value})["w"].square().sum()
        return result

    values = torch.randn(3, 9, generator=rng())
    batched = vmap(grad(energy))(values)
    for value, ours in zip(values, batched, strict=True):
        leaf = value.clone().requires_grad_()
        torch.testing.assert_close(ours, torch.autograd.grad(energy(leaf), leaf)[0])
    assert batched.count_nonzero() > 0
