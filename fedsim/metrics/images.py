"""Similarity of a guessed image to the private one: pixel errors, structure, and perception."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from fedsim.errors import ConfigError
from fedsim.metrics.base import Examples, Metric

_PSNR_CAP = 100.0


@dataclass(frozen=True)
class ImageMetric(Metric):
    """A metric that compares two images with pixels in [0, 1]."""

    modality: ClassVar[Literal["image", "text", "table", "any"]] = "image"


@dataclass(frozen=True)
class MeanSquaredError(ImageMetric):
    """Mean squared error over channels and pixels; pixels are in [0, 1]."""

    name: ClassVar[str] = "mse"
    title: ClassVar[str] = "MSE"
    unit: ClassVar[str] = "squared pixel"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "lower"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return squared_error(guess, truth)


@dataclass(frozen=True)
class PeakSignalToNoise(ImageMetric):
    """Peak signal-to-noise ratio ``10 log10(1 / mse)`` of each image, in decibels.

    It is computed from each image's own error, not from the mean error of the batch, and is at most
    100 dB (an error of 1e-10), so that an exact guess has a finite value.
    """

    name: ClassVar[str] = "psnr"
    title: ClassVar[str] = "PSNR"
    unit: ClassVar[str] = "dB"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 100] dB."""
        floor = 10 ** (-_PSNR_CAP / 10)
        return -10 * squared_error(guess, truth).clamp_min(floor).log10()


@dataclass(frozen=True)
class StructuralSimilarity(ImageMetric):
    """Structural similarity (SSIM, Wang et al. 2004), with a Gaussian window.

    The mean over all windows (11 pixels, sigma 1.5) of

        (2 m_x m_y + c_1) (2 s_xy + c_2) / ((m_x^2 + m_y^2 + c_1) (s_x^2 + s_y^2 + c_2))

    (equation 13), with m the means, s the covariances, c_1 = 0.01^2 and c_2 = 0.03^2. Every pixel
    is the centre of a window and edges are reflected, so images need at least 6 pixels a side;
    papers that leave out the edges report slightly different values. The window is the product of
    one along each axis.
    """

    name: ClassVar[str] = "ssim"
    title: ClassVar[str] = "SSIM"
    smallest: ClassVar[int] = 6
    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [-1, 1]."""
        guessed, private = pixels(guess, truth)
        if min(private.shape[2:]) < 6:
            raise ConfigError(
                f"ssim: needs images of at least 6 pixels a side, got {tuple(private.shape[2:])}. "
                "Leave the metric out."
            )
        rows, columns = (_window(size) for size in private.shape[2:])
        products = (guessed, private, guessed.square(), private.square(), guessed * private)
        x, y, xx, yy, xy = rows.T @ torch.stack(products) @ columns
        spread = (xx - x.square()).clamp_min(0) + (yy - y.square()).clamp_min(0)
        above = (2 * x * y + 0.01**2) * (2 * (xy - x * y) + 0.03**2)
        below = (x.square() + y.square() + 0.01**2) * (spread + 0.03**2)
        similarity: Tensor = above / below
        return similarity.flatten(1).mean(1)


def _window(size: int) -> Tensor:
    """The Gaussian window around each of ``size`` pixels, edges reflected, ``(pixel, centre)``."""
    weights = torch.arange(-5.0, 6.0, dtype=torch.float64).square().div(-2 * 1.5**2).exp()
    padded = pad(torch.eye(size, dtype=torch.float64), (5, 5), mode="reflect")
    return padded.unfold(1, 11, 1) @ (weights / weights.sum())


def squared_error(guess: Examples, truth: Examples) -> Tensor:
    """Mean squared error of each image, float64 ``(batch,)``."""
    guessed, private = pixels(guess, truth)
    return (guessed - private).square().flatten(1).mean(1)


def pixels(guess: Examples, truth: Examples) -> tuple[Tensor, Tensor]:
    """Images of the guess and of the truth, float64 in [0, 1]; NaN becomes grey, 0.5.

    Raises:
        ConfigError: the images differ in shape.
    """
    if guess.batch.inputs.shape[1:] != truth.batch.inputs.shape[1:]:
        raise ConfigError(
            f"guess: its images are {tuple(guess.batch.inputs.shape[1:])}, but the private ones "
            f"are {tuple(truth.batch.inputs.shape[1:])}. The attack has to return the task's shape."
        )
    return clamped(guess.batch.inputs), clamped(truth.batch.inputs)


def clamped(images: Tensor) -> Tensor:
    """Images as float64 in [0, 1]; NaN becomes grey, 0.5."""
    return images.detach().cpu().to(torch.float64).nan_to_num(0.5, 1.0, 0.0).clamp(0, 1)


@dataclass(frozen=True)
class PerceptualDistance(ImageMetric):
    """Perceptual distance (LPIPS 0.1 with AlexNet, Zhang et al. 2018) by torchmetrics.

    The distance of the activations of five layers, channel by channel with learned weights. Images
    with a side below 64 pixels are enlarged to 64 (bilinear), and grey images get three equal
    channels, so values on CIFAR differ from those of papers that use 32 pixels. Nothing is
    downloaded: torchvision's AlexNet has to be in torch's cache, ``TORCH_HOME``.
    """

    name: ClassVar[str] = "lpips"
    title: ClassVar[str] = "LPIPS"
    smallest: ClassVar[int] = 2
    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "lower"
    network: ClassVar[Literal["alex", "vgg"]] = "alex"
    weights: ClassVar[str] = "alexnet-owt-7be5be79.pth"
    side: ClassVar[int] = 64

    def available(self) -> str:
        """What has to be installed or downloaded first; empty if nothing."""
        if importlib.util.find_spec("torchvision") is None:
            return "torchvision is not installed; run pip install -e '.[lpips]'"
        weights = Path(torch.hub.get_dir()) / "checkpoints" / self.weights
        if not weights.is_file():
            return f"its weights are missing; put torchvision's {self.weights} at {weights}"
        return ""

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """0 for equal images, about 1 for unrelated ones."""
        from torchmetrics.functional.image.lpips import learned_perceptual_image_patch_similarity

        guessed, private = (_enlarged(images, self.side) for images in pixels(guess, truth))
        distance: Tensor = learned_perceptual_image_patch_similarity(
            guessed, private, net_type=self.network, reduction="none", normalize=True
        )
        return distance.detach().flatten().to(torch.float64)


@dataclass(frozen=True)
class PerceptualDistanceVGG(PerceptualDistance):
    """Perceptual distance (LPIPS 0.1 with VGG-16, Zhang et al. 2018) by torchmetrics.

    As in Learning To Invert (Wu et al. 2023), at the image's own size. Grey images get three equal
    channels, and images with a side below 16 pixels, which the last layer halves four times, are
    enlarged to 16. Nothing is downloaded: torchvision's VGG-16 has to be in torch's cache,
    ``TORCH_HOME``.
    """

    name: ClassVar[str] = "lpips_vgg"
    title: ClassVar[str] = "LPIPS (VGG)"
    network: ClassVar[Literal["alex", "vgg"]] = "vgg"
    weights: ClassVar[str] = "vgg16-397923af.pth"
    side: ClassVar[int] = 16


def _enlarged(images: Tensor, least: int) -> Tensor:
    colour = images.to(torch.float32).expand(-1, 3, -1, -1)
    side = min(colour.shape[2:])
    if side >= least:
        return colour
    return interpolate(colour, scale_factor=least / side, mode="bilinear", align_corners=False)
