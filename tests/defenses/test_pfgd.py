"""Pruned frequencies."""

import math

import torch

from fedsim.defenses.pfgd import Pfgd, cosines
from tests.defenses.cases import rng


def test_cosines_are_orthonormal_and_their_own_inverse() -> None:
    places = torch.arange(7, dtype=torch.float64) + 0.5
    table = math.sqrt(2 / 7) * (math.pi / 7 * places[:, None] * places).cos()
    values = torch.randn(7, generator=rng(), dtype=torch.float64)
    torch.testing.assert_close(cosines(values), table @ values)
    torch.testing.assert_close(cosines(cosines(values)), values)


def test_pfgd_leaves_out_the_lowest_frequencies_and_the_surrogate_is_it() -> None:
    update = {"a": torch.randn(30, 10, generator=rng()), "b": torch.randn(5, generator=rng(1))}
    sent = Pfgd(fraction=0.1).on_update(update, rng())
    assert torch.equal(sent["b"], update["b"])  # a tenth of five is none
    before, after = cosines(update["a"].flatten()), cosines(sent["a"].flatten())
    assert after[:30].abs().max() < 1e-5
    torch.testing.assert_close(after[30:], before[30:], atol=1e-5, rtol=0)
    torch.testing.assert_close(Pfgd(fraction=0.1).surrogate(sent)["a"], sent["a"])
