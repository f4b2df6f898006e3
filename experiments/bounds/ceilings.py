"""A ceiling on the PSNR of images from a noisy gradient, were images Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn import functional as F

from experiments.bounds.budgets import ExampleReply, own_captures
from experiments.bounds.information import upper_mean
from experiments.bounds.noise import Noise
from experiments.plan.cells import Cell
from fedsim.process import one_thread
from fedsim.tasks import load_task
from fedsim.types import Batch

_DIRECTIONS = 256  # pixels differentiated in one pass
_MOST = 250_000_000  # entries of the Jacobian, 1 GB
_ROUNDING = 1 / 255 / 12**0.5  # standard deviation of the rounding of a pixel to a byte
_CHOOSE = 4
"""Images whose whole Jacobians choose the test matrix; eight raise the bound by under .1 dB."""
_MEASURE = 24
"""Further images on which the bound is measured, each in ``_ASIDE`` random directions."""
_ASIDE = 16


@dataclass(frozen=True, eq=False)
class InformationSpectrum:
    """A Gaussian model of images: stationary, with the mean and spectrum of public ones.

    Attributes:
        centre: ``(pixel,)``.
        precision: ``(pixel, pixel)``.
        power: variances of its independent parts, ``(pixel,)``.
    """

    centre: Tensor
    precision: Tensor
    power: Tensor

    @classmethod
    def of(cls, images: Tensor) -> InformationSpectrum:
        """The model of ``(image, channel, height, width)``, more images than channels."""
        power = _powers(images)
        levels = torch.linalg.eigvalsh(power).flatten().clamp(min=1e-12)
        return cls(images.double().mean(0).flatten(), spectrum_precision(images), levels)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Images, float64 ``(image, pixel)``; their pixels may leave [0, 1]."""
        root = torch.linalg.cholesky(self.precision)
        noise = torch.randn(count, len(root), generator=rng, dtype=torch.float64)
        spread: Tensor = torch.linalg.solve_triangular(root.T, noise.T, upper=True).T
        return self.centre + spread


def ceiling(
    cell: Cell, noise: Noise, images: InformationSpectrum, seen: dict[str, Tensor] | None = None
) -> float | str:
    """Largest PSNR of the mean squared error from one reply, or why there is no bound.

    The van Trees inequality (van Trees 1968; Gill and Levit 1995, equation 1) averages over the
    prior: for every estimator x' of an image x from g(x) + N(0, std^2 I), and any matrix C,

        E |x' - x|^2  >=  (tr C)^2 / tr(C (E_x[J^T J] / std^2 + P) C),

    where J is the Jacobian of the gradient g in the pixels, and P the precision of the prior. The
    best C is the inverse of the sum. Some images drawn from the prior choose it; others measure
    the expectation, of which the upper end of the 95 % interval is taken. So it is a bound for
    images that are Gaussian with the spectrum of public ones. Real images are not: what else
    a prior knows of them may exceed it. The class and all other examples are given.

    Args:
        cell: a simulated one of images.
        noise: of one reply, on the scale of one example's gradient.
        images: the prior.
        seen: cache of ``J^T J`` by weights and clipping norm, shared by cells that differ only in
            their noise; it is filled here.
    """
    if noise.single:
        return noise.single
    key = own_captures(cell)[0]
    reply = ExampleReply.of(cell, key, load_task(cell.captures.root), noise.clip)
    if isinstance(reply, str):
        return reply
    values = sum(p.numel() for p in reply.model.parameters.values())
    if values * len(images.centre) > _MOST:
        return f"the Jacobian of {values:,} values in {len(images.centre):,} pixels is too large"
    rng = torch.Generator().manual_seed(0)
    drawn = images.draw(_CHOOSE + _MEASURE, rng).float()
    public = cell.captures.auxiliary()
    shape, labels = public.inputs.shape[1:], public.labels[: len(drawn)]
    labels = labels.repeat(math.ceil(len(drawn) / len(labels)))[: len(drawn)]
    examples = [
        Batch(image.view(1, *shape), label[None])
        for image, label in zip(drawn, labels, strict=True)
    ]
    name = f"{cell.captures.record(key).sent_sha256} {noise.clip}"
    known = {} if seen is None else seen
    unfold(reply.model.network)
    with one_thread():
        if name not in known:
            total = [information(reply, example) for example in examples[:_CHOOSE]]
            known[name] = torch.stack(total).mean(0)
        chosen = _inverse(known[name] / noise.std**2 + images.precision)
        moved = [_moved(reply, example, chosen, rng) for example in examples[_CHOOSE:]]
    measured = upper_mean(torch.tensor(moved))
    prior = float((chosen @ images.precision * chosen.T).sum())
    error = float(chosen.trace()) ** 2 / (measured / noise.std**2 + prior) / len(chosen)
    return -10 * math.log10(error)


def _moved(reply: ExampleReply, example: Batch, chosen: Tensor, rng: torch.Generator) -> float:
    """``tr(C J^T J C)`` of one image, without bias (Hutchinson 1990)."""
    signs = torch.randint(2, (_ASIDE, len(chosen)), generator=rng).double() * 2 - 1
    pushed = _pushed(reply, example, (signs @ chosen).float())
    return float(pushed.double().square().sum(1).mean())


def _inverse(matrix: Tensor) -> Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def information(reply: ExampleReply, example: Batch) -> Tensor:
    """``J^T J`` of the clipped gradient's Jacobian J, float64 ``(pixel, pixel)``.

    Computed by forward-mode differentiation, one direction per pixel.
    """
    jacobian = _pushed(reply, example, torch.eye(example.inputs.numel()))
    total = torch.zeros(len(jacobian), len(jacobian), dtype=torch.float64)
    for columns in jacobian.split(4096, dim=1):
        total += columns.double() @ columns.double().T
    return total


def _pushed(reply: ExampleReply, example: Batch, directions: Tensor) -> Tensor:
    """J times each direction, ``(direction, value)``."""

    def gradient(inputs: Tensor) -> Tensor:
        update = reply.gradient(Batch(inputs, example.labels))
        return torch.cat([value.flatten() for value in update.values()])

    def move(direction: Tensor) -> Tensor:
        moved: Tensor = jvp(gradient, (example.inputs,), (direction,))[1]
        return moved

    shaped = directions.view(-1, *example.inputs.shape)
    return torch.cat([vmap(move)(some).detach() for some in shaped.split(_DIRECTIONS)])


def unfold(network: nn.Module) -> None:
    """Let convolutions be products of unfolded images: ten times as fast for many on a CPU."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d) and part.groups == 1 and part.padding_mode == "zeros":
            part.forward = partial(_unfolded, part)  # type: ignore[method-assign]


def _unfolded(layer: nn.Conv2d, images: Tensor) -> Tensor:
    assert not isinstance(layer.padding, str)
    columns = F.unfold(images, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    reach = layer.dilation[0] * (layer.kernel_size[0] - 1) + 1
    height = (images.shape[2] + 2 * layer.padding[0] - reach) // layer.stride[0] + 1
    out = layer.weight.flatten(1) @ columns
    if layer.bias is not None:
        out = out + layer.bias[:, None]
    image: Tensor = out.unflatten(2, (height, -1))
    return image


def spectrum_precision(images: Tensor) -> Tensor:
    """Precision matrix, float64 ``(pixel, pixel)``, of a stationary Gaussian image model.

    The model treats images as periodic, so that frequencies are independent. Each frequency f has
    a channel covariance S_f, estimated from the Fourier transforms of the images, to which the
    variance of rounding to bytes is added. The precision is F* diag(S_f^-1) F, with F the unitary
    Fourier transform.

    Args:
        images: ``(image, channel, height, width)``; more images than channels.
    """
    power = _powers(images)
    pixels = torch.eye(images[0].numel(), dtype=torch.float64).view(-1, *images.shape[1:])
    weighted = torch.einsum(
        "hwcd,ndhw->nchw", torch.linalg.inv(power), torch.fft.fft2(pixels, norm="ortho")
    )
    precision: Tensor = torch.fft.ifft2(weighted, norm="ortho").real.flatten(1)
    return (precision + precision.T) / 2


def _powers(images: Tensor) -> Tensor:
    """Covariance of the channels at each frequency, ``(height, width, channel, channel)``."""
    values = images.double()
    waves = torch.fft.fft2(values - values.mean(0), norm="ortho")
    power = torch.einsum("nchw,ndhw->hwcd", waves, waves.conj()) / (len(waves) - 1)
    return power + _ROUNDING**2 * torch.eye(values.shape[1])
