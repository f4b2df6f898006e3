"""Perceptual distance of images; optional, since it needs weights trained on ImageNet."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedsim.metrics.base import Examples
from fedsim.metrics.images import ImageMetric, pixels


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
