"""Signs, their scale and the surrogate."""

import torch
from torch import nn

from fedsim.defenses.sign import Sign
from tests.defenses.cases import rng, update


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
