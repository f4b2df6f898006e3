"""How well an image can be recovered from one noisy gradient at best, near the true image."""

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
from fedsim.defenses.clip import cut
from fedsim.defenses.dp_client import DpClient
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.threads import one_thread
from fedsim.types import Batch

_DIRECTIONS = 256  # pixels that are moved in one pass
_MOST = 250_000_000  # entries of the Jacobian, 1 GB
_ROUNDING = 1 / 255 / 12**0.5  # standard deviation of a pixel that was rounded to a byte
_UNIFORM = 1 / 12  # variance of a pixel of which nothing is known


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One private image.

    Attributes:
        std: of the noise on a coordinate of the gradient.
        psnr: of the least mean squared error, in dB.
    """

    key: CaptureKey
    std: float
    psnr: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Those of some captures of one cell.

    Attributes:
        prior: what was taken to be known of images before any gradient.
    """

    found: tuple[Ceiling, ...]
    prior: str

    @property
    def psnr(self) -> float:
        """Their median, in dB."""
        return median(one.psnr for one in self.found)


def obstacle(config: CellConfig) -> str:
    """Why there is no ceiling for such a cell, as far as its config says; empty for none."""
    federation = config.federation
    defenses = build_chain(config.defense, "defense").defenses
    if len(defenses) != 1 or not isinstance(defenses[0], GaussianNoise | DpSgd | DpClient):
        return "the defense is not Gaussian noise alone"
    if federation.cohort > 1:
        return f"the server sees the sum of {federation.cohort} clients"
    if federation.batch_size > 1:
        return f"a batch holds {federation.batch_size} examples, and not one"
    if federation.protocol == "fedavg" and federation.optimizer in ("adam", "adamw"):
        return f"an update by {federation.optimizer} is no gradient"
    return ""


def ceilings(cell: Cell, victims: int, seen: dict[str, Tensor] | None = None) -> Ceilings | str:
    """The local ceilings of a simulated cell's first captures, by round and client.

    The van Trees inequality (the Bayesian Cramer-Rao bound) for a gradient with Gaussian noise:
    its Fisher information ``J^T J / std^2``, with ``J`` the Jacobian of the gradient in the
    pixels, is taken at the true image alone and not averaged over images. So it is a local ceiling
    and not a proof. The attacker is given the class and the defense's clipping, and a Gaussian
    prior: mean and power spectrum of its auxiliary rows. That pixels lie in [0, 1] is left out, so
    that an attack may do better where noise hides nearly all.

    Args:
        cell: its truth is read.
        victims: how many captures at most.
        seen: ``J^T J`` of captures by weights, image and clipping; filled, and shared by cells
            that differ in their noise.

    Returns:
        The ceilings, or why there are none.
    """
    if reason := obstacle(cell.config):
        return reason
    task = load_task(cell.captures.root)
    if task.modality != "image":
        return "token ids have no derivative"
    expert = _Expert(cell, task, {} if seen is None else seen)
    records = [cell.truth.record(key) for key in cell.captures.keys()]
    taken = [record for record in records if record.probe == "none"][:victims]
    if not taken:
        return "there is no capture of a client"
    if any(len(record.steps) > 1 for record in taken):
        return "the updates sum several steps"
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
        """The precision matrix of images and its source."""
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
        """Clipping norm and standard deviation of the noise, both in units of the gradient."""
        config = self.cell.config
        defense = build_chain(config.defense, "defense").defenses[0]
        rate = config.federation.learning_rate if config.federation.protocol == "fedavg" else 1.0
        if isinstance(defense, GaussianNoise):
            return math.inf, defense.std / (rate if defense.changes_update else 1)
        fitted = defense.fit(Schedule.of(config.federation, self._rows[client]))
        assert isinstance(fitted, DpSgd | DpClient)
        assert fitted.noise_multiplier is not None
        clip = fitted.clip / (rate if fitted.changes_update else 1)
        return clip, fitted.noise_multiplier * clip

    def judge(self, key: CaptureKey, image: str) -> Ceiling | str:
        """The ceiling of one capture, or why there is none."""
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
    """``J^T J`` of the gradient, clipped to a norm, float64 ``(pixel, pixel)``.

    By forward mode over all pixels. Convolutions are unfolded into matrix products, whose weight
    gradients for many images at once are ten times as fast on a CPU.
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
    """The inverse covariance, float64 ``(pixel, pixel)``, of Gaussian images with this spectrum.

    Each frequency has its own covariance of the channels, and frequencies are independent, as if
    the images went on periodically. The rounding of pixels to bytes is added.

    Args:
        images: ``(image, channel, height, width)``, more than channels.
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
    """``tr((J^T J / std^2 + precision)^-1) / pixels``, the mean squared error of the posterior."""
    factor = torch.linalg.cholesky(information / std**2 + precision)
    return float(torch.cholesky_inverse(factor).diagonal().mean())
