import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.images import (
    PerceptualDistance,
    PerceptualDistanceVGG,
    StructuralSimilarity,
    clamped,
)
from fedsim.types import Batch


def images(inputs: Tensor) -> Examples:
    return Examples(Batch(inputs, torch.zeros(len(inputs), dtype=torch.int64)))


def score(name: str, guess: Tensor, truth: Tensor) -> Tensor:
    return METRICS[name]().score(images(guess), images(truth))


def picture(seed: int = 0) -> Tensor:
    """Four smooth pictures of 3 x 16 x 16."""
    coarse = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=16, mode="bilinear")


def test_mse_and_psnr_are_of_each_image_alone() -> None:
    truth = torch.full((3, 1, 8, 8), 0.5)
    guess = torch.stack([torch.full((1, 8, 8), v) for v in (0.5, 0.6, 1.0)])
    error = score("mse", guess, truth)
    assert error.dtype == torch.float64
    torch.testing.assert_close(
        error, torch.tensor([0, 0.01, 0.25], dtype=torch.float64), atol=1e-8, rtol=0
    )
    expected = [100.0, 20.0, 10 * math.log10(4)]
    assert score("psnr", guess, truth).tolist() == pytest.approx(expected, abs=1e-5)


def test_pixels_are_clamped_and_what_is_no_number_is_grey() -> None:
    truth = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0]).reshape(1, 1, 1, 5)
    guess = torch.tensor([7.0, -3.0, math.nan, math.inf, -math.inf]).reshape(1, 1, 1, 5)
    assert score("mse", guess, truth).item() == 0.0
    assert clamped(guess).flatten().tolist() == [1.0, 0.0, 0.5, 1.0, 0.0]


@pytest.mark.parametrize("name", ["mse", "psnr", "ssim"])
def test_a_guess_of_another_shape_is_refused_instead_of_broadcast(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        score(name, torch.zeros(2, 1, 16, 16), torch.zeros(2, 3, 16, 16))
    assert str(caught.value) == (
        "guess: its images are (1, 16, 16), but the private ones are (3, 16, 16). The attack has "
        "to return the task's shape."
    )


def test_ssim_is_one_for_equal_images_and_falls_with_noise() -> None:
    truth = picture()
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    equal, near, far = (score("ssim", truth + s * noise, truth) for s in (0.0, 0.05, 0.3))
    assert equal.shape == (4,)
    assert equal.tolist() == pytest.approx([1.0] * 4)
    assert (near < equal).all()
    assert (far < near).all()


def test_ssim_of_two_flat_images_is_the_closed_form() -> None:
    # Without variance only the term of the means is left: (2ab + c1) / (a^2 + b^2 + c1).
    a, b, c1 = 0.2, 0.8, 0.01**2
    scores = score("ssim", torch.full((1, 3, 12, 12), a), torch.full((1, 3, 12, 12), b))
    assert scores.item() == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-6)


def test_ssim_is_that_of_torchmetrics() -> None:
    from torchmetrics.functional.image import structural_similarity_index_measure

    rng = torch.Generator().manual_seed(0)
    guess, truth = torch.rand(2, 3, 3, 12, 17, generator=rng, dtype=torch.float64)
    known = structural_similarity_index_measure(guess, truth, data_range=1.0, reduction="none")
    torch.testing.assert_close(score("ssim", guess, truth), known, rtol=0, atol=1e-12)


def test_ssim_of_one_image_does_not_depend_on_the_others() -> None:
    truth, guess = picture(), picture(1)
    together = score("ssim", guess, truth)
    alone = [score("ssim", guess[i : i + 1], truth[i : i + 1]).item() for i in range(4)]
    assert together.tolist() == pytest.approx(alone)


def test_ssim_refuses_tiny_images() -> None:
    tiny = images(torch.zeros(1, 1, 5, 9))
    with pytest.raises(
        ConfigError, match=r"ssim: needs images of at least 6 pixels .* got \(5, 9\)\."
    ):
        StructuralSimilarity().score(tiny, tiny)


@pytest.mark.parametrize(
    ("metric", "weights"),
    [
        (PerceptualDistance, "alexnet-owt-7be5be79.pth"),
        (PerceptualDistanceVGG, "vgg16-397923af.pth"),
    ],
)
def test_lpips_says_what_is_missing(
    metric: type[PerceptualDistance],
    weights: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert metric().available() == "torchvision is not installed; run pip install -e '.[lpips]'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert metric().available() == (
        f"its weights are missing; put torchvision's {weights} at {tmp_path}/checkpoints/{weights}"
    )


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 1, 28, 28), (2, 3, 32, 32), (2, 3, 64, 96)])
@pytest.mark.parametrize("metric", [PerceptualDistance(), PerceptualDistanceVGG()])
def test_lpips_is_zero_for_equal_images_only(
    metric: PerceptualDistance, shape: tuple[int, ...]
) -> None:
    if reason := metric.available():
        pytest.skip(reason)
    truth = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    assert score(metric.name, truth, truth).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert (score(metric.name, 1 - truth, truth) > 0.01).all()
