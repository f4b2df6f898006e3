"""Soteria beside its published code."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedsim.defenses.base import Step
from fedsim.defenses.soteria import Soteria
from fedsim.errors import ConfigError
from fedsim.types import Batch, Tensors
from tests.defenses.cases import rng


def test_soteria_leaves_out_the_features_with_the_smallest_scores(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(2)
    sent = Soteria(percentile=70).on_step(gradient, one, rng())
    zeroed = (sent["fc.weight"] == 0).all(0)
    assert float(zeroed.double().mean()) == pytest.approx(0.7, abs=0.01)
    assert all(torch.equal(sent[k], v) for k, v in gradient.items() if k != "fc.weight")
    assert torch.equal(sent["fc.weight"][:, ~zeroed], gradient["fc.weight"][:, ~zeroed])
    # The score of one feature, by its definition.
    body, head = one.model.body, one.model.fc
    assert isinstance(body, nn.Module)
    assert isinstance(head, nn.Linear)
    expected = 0.0
    for image in one.batch.inputs:
        image = image[None].clone().requires_grad_(True)
        feature = body(image)[0, 5]
        (slope,) = torch.autograd.grad(feature, image)
        expected += float(slope.norm() / (feature.detach() + 0.1))
    scores = Soteria().scores(one, head)
    assert float(scores[5]) == pytest.approx(expected, rel=1e-5)
    assert scores[zeroed].max() < scores[~zeroed].min()


def test_soteria_needs_images_and_a_linear_layer_at_the_end() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    images = Step(network, Batch(torch.zeros(1, 2), torch.zeros(1)), lambda *_: torch.zeros(()))
    with pytest.raises(ConfigError, match="does not end in a linear layer"):
        Soteria().on_step({}, images, rng())
    tokens = Step(
        nn.Sequential(nn.Linear(2, 2)), Batch(torch.tensor([[1]]), torch.zeros(1)), images.loss
    )
    with pytest.raises(ConfigError, match="Choose images"):
        Soteria().on_step({}, tokens, rng())
