"""What the prior makes of a search's guess."""

import pytest
import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.images.image_losses import surprise
from attacks.images.victims import NOTE, SMOOTHED, guarded
from attacks.observed.distance import cosine_distance
from attacks.observed.pixel_prior import PixelPrior
from fedsim.types import Batch, Tensors

SHAPE = (3, 16, 16)
COPIES = 30


def evidence(images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
    """Of an update that holds the images' deviations from grey many times."""
    del labels
    update = {"update": (images - 0.5).expand(COPIES, *SHAPE)}
    distance = cosine_distance(update, observed)
    return distance, surprise(distance, observed)


@pytest.mark.parametrize(
    ("noise", "note"), [(0.0, ""), (1.0, SMOOTHED), (3.0, SMOOTHED), (1e3, NOTE)]
)
def test_a_guess_is_smoothed_as_far_as_it_fits_noise(noise: float, note: str) -> None:
    prior, rng = PixelPrior.of(None, SHAPE), torch.Generator().manual_seed(0)
    truth = (prior.mean + prior.draw(1, torch.zeros(0, dtype=torch.int64), rng)).float()
    seen = truth + noise * torch.randn(COPIES, *SHAPE, generator=rng)
    images = seen.mean(0, keepdim=True)
    reconstruction = Reconstruction(Batch(images, torch.zeros(1, dtype=torch.int64)), objective=0.0)
    observed = {"update": seen - 0.5}
    guess = guarded(reconstruction, prior, evidence, observed)
    assert guess.note == note
    own, raw, blank = (
        float((guessed - truth).square().mean())
        for guessed in (guess.guess.inputs, images, prior.mean)
    )
    assert own <= min(raw, blank) + 1e-9
    assert note != SMOOTHED or own < 0.8 * min(raw, blank)


def test_smoothing_keeps_common_coefficients() -> None:
    prior, rng = PixelPrior.of(None, SHAPE), torch.Generator().manual_seed(1)
    images = torch.rand(2, *SHAPE, generator=rng)
    torch.testing.assert_close(prior.smoothed(images, 0.0), images.double())
    kept = prior.coefficients(prior.smoothed(images, prior.error)) / prior.coefficients(images)
    order = prior.variances.flatten().argsort(descending=True)
    assert bool((kept[:, order].diff(dim=1) <= 1e-9).all())
    assert bool((kept > 0).all() and (kept < 1).all())
