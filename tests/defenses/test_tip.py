"""Noise on high frequencies of kernels."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedsim.defenses.base import Step
from fedsim.defenses.tip import Tip
from fedsim.errors import ConfigError
from fedsim.types import Tensors
from tests.defenses.cases import rng


def test_tip_adds_noise_to_high_frequencies_of_important_kernels(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(2)
    tip = Tip(clip=1e6, epsilon=1e7)  # nothing is clipped
    noise = [
        {name: value - gradient[name] for name, value in tip.on_step(gradient, one, rng(s)).items()}
        for s in range(20)
    ]
    first = "body.0.weight"
    touched = noise[0][first].flatten(1).any(1)
    assert int(touched.sum()) == math.ceil(0.3 * len(touched))
    assert not any(noise[0][name].any() for name in gradient if not name.startswith("body."))
    # By the definition: of 25 frequencies the 16 with more than half of the farthest's distance.
    low = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 4), (0, 4), (4, 0), (4, 1), (4, 4)]
    spectra = torch.fft.fft2(torch.stack([each[first][touched] for each in noise]))
    assert max(float(spectra[..., i, j].abs().max()) for i, j in low) < 1e-5
    expected = 1e6 * math.sqrt(2 * math.log(1.25e5)) / (2 * 1e7) * 4 / 25
    drawn = torch.stack([each[first][touched] for each in noise])
    assert float(drawn.square().mean().sqrt()) == pytest.approx(expected, rel=0.05)
    # Of one convolution, Grad-CAM's importance by its definition.
    body, head = one.model.body, one.model.fc
    assert isinstance(body, nn.Sequential)
    assert isinstance(head, nn.Linear)
    channels = body[0](one.batch.inputs).detach().requires_grad_(True)
    scores = head(body[1:](channels))
    true = sum(score[label] for score, label in zip(scores, one.batch.labels, strict=True))
    (slopes,) = torch.autograd.grad(true, channels)
    importance = slopes.mean((2, 3)).abs().mean(0)
    torch.testing.assert_close(tip.importances(one)["body.0"], importance)
    assert float(importance[touched].min()) > float(importance[~touched].max())
    linear = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="no convolution"):
        tip.on_step(gradient, Step(linear, one.batch, one.loss), rng())
