"""A local ceiling on the PSNR at which an image can be recovered from one noisy gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.observed.replay import Replay, replay
from experiments.plan.cells import Cell
from experiments.stages.privacy import owned
from fedsim.accountant import Schedule
from fedsim.capture import CaptureKey
from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.magnitudes import cut
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.threads import one_thread
from fedsim.types import Batch

_DIRECTIONS = 256  # pixels differentiated in one pass
_MOST = 250_000_000  # entries of the Jacobian, 1 GB
_ROUNDING = 1 / 255 / 12**0.5  # standard deviation of the rounding of a pixel to a byte
_UNIFORM = 1 / 12  # variance of a pixel uniform on [0, 1]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The ceiling of one captured image.

    Attributes:
        std: standard deviation of the noise on each gradient coordinate.
        psnr: PSNR of the smallest achievable mean squared error, in dB.
    """

    key: CaptureKey
    std: float
    psnr: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of some captures of one cell.

    Attributes:
        prior: what the attacker is assumed to know about images in advance.
    """

    found: tuple[Ceiling, ...]
    prior: str

    @property
    def psnr(self) -> float:
        """Median of the ceilings, in dB."""
        return median(one.psnr for one in self.found)


def obstacle(config: CellConfig) -> str:
    """The reason, from a cell's config, that it has no ceiling; empty if it may have one."""
    federation = config.federation
    defenses = build_chain(config.defense, "defense").defenses
    if len(defenses) != 1 or defenses[0].gaussian is None:
        return "the defense is not Gaussian noise alone"
    if federation.cohort > 1:
        return f"the server sees the sum of {federation.cohort} clients"
    if federation.batch_size > 1:
        return f"a batch holds {federation.batch_size} examples instead of one"
    if federation.protocol == "fedavg" and not federation.plain:
        return f"an update of {federation.optimizer} is not a gradient"
    return ""


def ceilings(cell: Cell, victims: int, seen: dict[str, Tensor] | None = None) -> Ceilings | str:
    """The local ceilings of a simulated cell's first captures, in order of round and client.

    The van Trees inequality, or Bayesian Cramer-Rao bound (van Trees 1968; Gill and Levit 1995,
    equation 1), limits every estimator x' of an image x with prior p, given y ~ N(g(x), std^2 I):

        E |x' - x|^2  >=  tr (E_x[J^T J] / std^2 + P)^-1,

    where J is the Jacobian of the gradient g in the pixels, and P is the information of the prior,
    for a Gaussian its precision matrix. We take J at the true image instead of averaging over the
    prior, which makes this a local ceiling and not a proof. The attacker is given the class, the
    defense's clipping norm, and the mean and power spectrum of the auxiliary images. The range
    [0, 1] of pixels is ignored, so an attack can exceed the ceiling where noise hides nearly all.

    Args:
        cell: the cell, whose private data is read.
        victims: largest number of captures.
        seen: cache of ``J^T J`` by weights, image and clipping norm. It is filled here and shared
            by cells that differ only in their noise.

    Returns:
        The ceilings, or the reason that there are none.
    """
    if reason := obstacle(cell.config):
        return reason
    task = load_task(cell.captures.root)
    if task.modality != "image":
        return "token ids cannot be differentiated"
    expert = _Expert(cell, task, {} if seen is None else seen)
    records = [cell.truth.record(key) for key in cell.captures.keys()]
    taken = [record for record in records if record.probe == "none"][:victims]
    if not taken:
        return "no client was captured"
    if any(len(record.steps) > 1 for record in taken):
        return "each update sums several local steps"
    with one_thread():
        found = [expert.judge(record.key, record.sha256) for record in taken]
    known = tuple(one for one in found if isinstance(one, Ceiling))
    reasons = [one for one in found if isinstance(one, str)]
    return reasons[0] if reasons else Ceilings(known, expert.prior[1])


@dataclass(frozen=True)
class _Expert:
    cell: Cell
    task: Task
    seen: dict[str, Tensor] = field(repr=False)

    @cached_property
    def prior(self) -> tuple[Tensor, str]:
        """Precision matrix of the image prior, and a description of its source."""
        shape = self.task.spec.input_shape
        if (self.cell.captures.root / "auxiliary.safetensors").exists():
            rows = self.cell.captures.auxiliary().inputs
            if len(rows) > shape[0]:
                return spectrum_precision(rows), f"spectrum of {len(rows)} auxiliary rows"
        return torch.eye(math.prod(shape), dtype=torch.float64) / _UNIFORM, "uniform pixels"

    @cached_property
    def _rows(self) -> tuple[int, ...]:
        return owned(self.cell)

    def _noise(self, client: int) -> tuple[float, float]:
        """Clipping norm and standard deviation of the noise, both on the scale of the gradient."""
        config = self.cell.config
        defense = build_chain(config.defense, "defense").defenses[0]
        rate = config.federation.learning_rate if config.federation.protocol == "fedavg" else 1.0
        noise = defense.fit(Schedule.of(config.federation, self._rows[client])).gaussian
        assert noise is not None
        assert noise.std is not None
        scale = rate if defense.changes_update else 1
        return noise.clip / scale, noise.std / scale

    def judge(self, key: CaptureKey, image: str) -> Ceiling | str:
        """The ceiling of one capture, or the reason that there is none."""
        clip, std = self._noise(key.client)
        if std == 0:
            return "the noise is zero"
        name = f"{self.cell.captures.record(key).sent_sha256} {image} {clip}"
        if name not in self.seen:
            model = replay(self.cell.captures.load(key), self.task, torch.device("cpu"))
            mixing = [type(part) for part in model.network.modules() if _is_random(part)]
            if mixing and self.cell.config.federation.train_mode:
                return f"{mixing[0].__name__} was in train mode"
            values = sum(p.numel() for p in model.parameters.values())
            pixels = math.prod(self.task.spec.input_shape)
            if values * pixels > _MOST:
                return f"the Jacobian of {values:,} values in {pixels:,} pixels is too large"
            self.seen[name] = information(model, self.cell.truth.load(key), clip)
        error = least_error(self.seen[name], std, self.prior[0])
        return Ceiling(key, std, -10 * math.log10(error))


def _is_random(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) or (isinstance(part, nn.Dropout) and part.p > 0)


def information(model: Replay, batch: Batch, clip: float = math.inf) -> Tensor:
    """``J^T J`` of the clipped gradient's Jacobian J, float64 ``(pixel, pixel)``.

    Computed by forward-mode differentiation, one direction per pixel. Convolutions are unfolded
    into matrix products: their weight gradients for many images are ten times as fast on a CPU.
    """
    for part in model.network.modules():
        if isinstance(part, nn.Conv2d) and part.groups == 1 and part.padding_mode == "zeros":
            part.forward = partial(_unfolded, part)  # type: ignore[method-assign]

    def gradient(inputs: Tensor) -> Tensor:
        update = model.pure_gradient(Batch(inputs, batch.labels))
        kept = update if clip == math.inf else cut(update, clip)
        return torch.cat([value.flatten() for value in kept.values()])

    def move(direction: Tensor) -> Tensor:
        moved: Tensor = jvp(gradient, (batch.inputs,), (direction,))[1]
        return moved

    directions = torch.eye(batch.inputs.numel()).view(-1, *batch.inputs.shape)
    jacobian = torch.cat([vmap(move)(some).detach() for some in directions.split(_DIRECTIONS)])
    total = torch.zeros(len(jacobian), len(jacobian), dtype=torch.float64)
    for columns in jacobian.split(4096, dim=1):
        total += columns.double() @ columns.double().T
    return total


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
    values = images.double()
    waves = torch.fft.fft2(values - values.mean(0), norm="ortho")
    power = torch.einsum("nchw,ndhw->hwcd", waves, waves.conj()) / (len(waves) - 1)
    channels = values.shape[1]
    power = power + _ROUNDING**2 * torch.eye(channels)
    pixels = torch.eye(values[0].numel(), dtype=torch.float64).view(-1, *values.shape[1:])
    weighted = torch.einsum(
        "hwcd,ndhw->nchw", torch.linalg.inv(power), torch.fft.fft2(pixels, norm="ortho")
    )
    precision: Tensor = torch.fft.ifft2(weighted, norm="ortho").real.flatten(1)
    return (precision + precision.T) / 2


def least_error(information: Tensor, std: float, precision: Tensor) -> float:
    """The bound per pixel: ``tr((information / std^2 + precision)^-1) / pixels``."""
    factor = torch.linalg.cholesky(information / std**2 + precision)
    return float(torch.cholesky_inverse(factor).diagonal().mean())
