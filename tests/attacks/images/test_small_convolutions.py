"""oneDNN where it is quicker, and the same slopes without."""

import pytest
import torch
from torch import Tensor

from attacks.images.small_convolutions import suited_convolutions
from fedsim.models.lenet import LeNet


def slope(network: LeNet, images: Tensor) -> Tensor:
    images = images.clone().requires_grad_()
    gradients = torch.autograd.grad(
        network(images).logsumexp(1).sum(), list(network.parameters()), create_graph=True
    )
    total = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    (found,) = torch.autograd.grad(total, images)
    return found


def test_one_picture_goes_without_and_several_with() -> None:
    network, images = LeNet((3, 32, 32), 10), torch.rand(8, 3, 32, 32)
    usual = slope(network, images[:1])
    with suited_convolutions(network, lambda: network(images[:1])):
        assert not torch.backends.mkldnn.enabled
        torch.testing.assert_close(slope(network, images[:1]), usual, atol=1e-6, rtol=1e-4)
        with suited_convolutions(
            network, lambda: network(images)
        ):  # what someone switched off stays off
            assert not torch.backends.mkldnn.enabled
    with suited_convolutions(network, lambda: network(images)):
        assert torch.backends.mkldnn.enabled
    with pytest.raises(RuntimeError), suited_convolutions(network, lambda: network(images[:1])):
        network(images[:1, :2])
    assert torch.backends.mkldnn.enabled
