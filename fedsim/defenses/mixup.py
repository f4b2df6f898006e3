"""mixup: a client trains on weighted means of two of its images."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.defenses.base import Defense, DefenseFamily, Distortion
from fedsim.errors import ConfigError
from fedsim.types import Batch

_LARGEST = 4
"""Most images of a batch whose mixtures an attacker takes apart; all orders are tried."""
_SHARES = 5_000
"""Shares between a half and 1 that are tried, so close that pixels show that they are bytes."""
_PIXELS = 128
"""Values of each image that are tried, of those that differ most within the batch."""
_BYTES = 0.02
"""Largest mean square distance from bytes of what is taken for images; at random it is 1/12."""


@dataclass(frozen=True, kw_only=True)
class Mixup(Defense):
    """Trains on ``s x_i + (1 - s) x_p(i)`` with such a mean of the classes (Zhang et al. 2018).

    The share s is drawn from Beta(alpha, alpha) and p from all orders, once for each batch, as in
    the authors' code. InstaHide (Huang et al. 2020) adds public images and random signs of pixels;
    it is not here. A batch of one image stays as it is.

    Images are bytes and their mixtures are not. An adaptive attacker who knows all mixtures of a
    batch of up to four exactly therefore tries shares and orders, until what was mixed are bytes.

    Attributes:
        alpha: of the Beta distribution; 1 is the authors' for CIFAR-10, and makes s uniform.
    """

    title: ClassVar[str] = "mixup"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; recipes of training have it"
    known: ClassVar[str] = "That mixtures of a batch come from as many images, which are bytes."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"inputs"})

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        """The mixtures, with soft classes.

        Raises:
            ConfigError: the examples are no images with a class each.
        """
        images, labels = batch.inputs, batch.labels
        if not images.is_floating_point() or labels.dim() != 1 or labels.is_floating_point():
            raise ConfigError("mixup: it mixes images with a class each. Choose some.")
        seed, *_ = torch.randint(2**31, (1,), generator=rng, device=rng.device).tolist()
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        order = torch.randperm(len(batch), generator=rng, device=rng.device).to(images.device)
        classes = F.one_hot(labels, _classes(model, images)).to(images.dtype)
        return replace(
            batch,
            inputs=share * images + (1 - share) * images[order],
            labels=share * classes + (1 - share) * classes[order],
        )

    def recover(self, batch: Batch, model: nn.Module) -> Batch:
        """What was mixed, where bytes show it; else the mixtures."""
        del model
        mixtures = batch.inputs.double().flatten(1)
        if not 2 <= len(mixtures) <= _LARGEST:
            return batch
        varied = mixtures.var(0).topk(min(_PIXELS, mixtures.shape[1])).indices
        unmixing, miss = min(_unmixings(mixtures[:, varied]), key=lambda tried: tried[1])
        if miss > _BYTES:
            return batch
        images = ((unmixing @ mixtures).clamp(0, 1) * 255).round() / 255
        return replace(batch, inputs=images.reshape(batch.inputs.shape).to(batch.inputs.dtype))


def _unmixings(mixtures: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Of each order the matrix ``(image, mixture)`` that leads nearest to bytes, and how near."""
    identity = torch.eye(len(mixtures)).to(mixtures)
    shares = torch.linspace(0.5, 1, _SHARES + 1).to(mixtures)[1:, None, None]
    for order in permutations(range(len(mixtures))):
        unmixing = torch.linalg.inv(shares * identity + (1 - shares) * identity[list(order)])
        values = unmixing @ mixtures * 255
        miss = (values - values.round().clamp(0, 255)).square().mean((1, 2))
        best = int(miss.argmin())
        yield unmixing[best], float(miss[best])


@torch.no_grad()
def _classes(model: nn.Module, images: Tensor) -> int:
    """Outputs of the network, of whose statistics a copy keeps account."""
    return int(copy.deepcopy(model).eval()(images[:1]).shape[-1])
