"""Mixtures of pictures, and what bytes tell of them."""

import pytest
import torch

from fedsim.defenses.mixup import Mixup
from fedsim.errors import ConfigError
from fedsim.types import Batch
from tests.defenses.cases import NETWORK, rng, smooth


def test_mixtures_and_their_classes_have_one_share_and_one_order() -> None:
    batch = smooth(4)
    mixed = Mixup().on_batch(batch, NETWORK, rng(1))
    torch.testing.assert_close(mixed.labels.sum(1), torch.ones(4))
    assert mixed.labels.shape == (4, 10)
    weights = mixed.labels[:, :4]
    torch.testing.assert_close(
        mixed.inputs, torch.einsum("ij,jchw->ichw", weights, batch.inputs), atol=1e-6, rtol=0
    )
    assert len(weights[weights > 0].unique()) <= 3  # s, 1 - s, and their sum of a fixed point


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bytes_tell_what_was_mixed(seed: int) -> None:
    batch = smooth(3)
    mixed = Mixup().on_batch(batch, NETWORK, rng(seed))
    read = mixed.inputs + 1e-5 * torch.randn(mixed.inputs.shape, generator=rng())
    images = Mixup().recover(Batch(read, mixed.labels), NETWORK).inputs
    nearest = torch.cdist(batch.inputs.flatten(1), images.flatten(1)).min(1).values
    assert not nearest.any()


def test_mixtures_that_are_not_known_exactly_stay() -> None:
    mixed = Mixup().on_batch(smooth(3), NETWORK, rng())
    blurred = Batch(mixed.inputs + 0.01 * torch.randn(3, 3, 32, 32, generator=rng()), mixed.labels)
    assert Mixup().recover(blurred, NETWORK) is blurred
    with pytest.raises(ConfigError, match="images with a class each"):
        Mixup().on_batch(Batch(torch.tensor([[1]]), torch.tensor([0])), NETWORK, rng())
