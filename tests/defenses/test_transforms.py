import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedsim.defenses.base import StagedDefense
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.prune import Prune
from fedsim.defenses.sign import Sign
from tests.defenses.cases import rng, update

STAGED = [
    GaussianNoise(std=0.1),
    Prune(fraction=0.5),
    Prune(fraction=0.5, keep="random"),
    Sign(),
    Sign(scale="mean"),
]


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
