"""Truncated singular values."""

import math

import torch

from fedsim.defenses.svdefense import SvDefense
from tests.defenses.cases import rng


def test_svdefense_sends_as_much_energy_as_the_entropy_asks_for() -> None:
    left, _, right = torch.linalg.svd(torch.randn(4, 6, generator=rng()), full_matrices=False)
    sizes = torch.tensor([3.0, 2.0, 1.0, 0.5])
    matrix, bias = (left * sizes) @ right, torch.randn(4, generator=rng(1))
    shares = sizes.square() / sizes.square().sum()
    entropy = float(-(shares * shares.log()).sum()) / math.log(4)
    for least, most in ((0.2, 0.5), (0.5, 0.9), (0.9, 1.0)):
        rank = int((shares.cumsum(0) < least + (most - least) * entropy).sum()) + 1
        truncated = (left[:, :rank] * sizes[:rank]) @ right[:rank]
        weights = truncated.norm(dim=1) / truncated.norm(dim=1).max()
        update = {"fc.weight": matrix.view(4, 2, 3), "fc.bias": bias}
        sent = SvDefense(least=least, most=most).on_update(update, rng())
        torch.testing.assert_close(sent["fc.weight"].flatten(1), weights[:, None] * truncated)
        torch.testing.assert_close(sent["fc.bias"], weights * bias)
    one = torch.outer(bias, matrix[0])
    alone = SvDefense().on_update({"w": one}, rng())["w"]
    torch.testing.assert_close(alone / bias.abs()[:, None] * bias.abs().max(), one)
