"""Upper limits on any attack on a run, from rank, differential privacy and information."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn import functional as F

from experiments.bounds.budgets import ExampleReply, bits_sent, measured, own_captures
from experiments.bounds.information import Listed, decibels, gaussian_error, most, upper_mean
from experiments.bounds.records import BudgetLimit, LimitsRecord, RankLimit, Source, SuccessLimit
from experiments.bounds.success import Noise, guesses, least_noise, mechanism, over_rounds
from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.preview.feasibility import feasible
from experiments.stages.utility import owned
from fedsim.config.setting import Setting, load_setting
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.process import one_thread
from fedsim.store.files import write_json
from fedsim.tasks import initial_weights, load_task
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Case:
    """A cell with its data, task and initial weights."""

    cell: Cell
    setting: Setting
    weights: Tensors

    @property
    def who(self) -> dict[str, Any]:
        """The columns that all limits of the cell share."""
        chain = build_chain(self.cell.config.defense, "defense")
        return {
            "run": self.cell.experiment.name,
            "cell": self.cell.name,
            "defense": chain.name,
            "defense_options": chain.options_json,
        }


def limits(run: Run, *, gaussian: bool = True) -> LimitsRecord:
    """Compute the limits of a run's cells, for the first seed, and write them to ``limits.json``.

    Args:
        run: cells that are not simulated get no budget.
        gaussian: bound the PSNR were images Gaussian, too, which takes Jacobians.
    """
    known = list(cases(run.cells))
    shared: dict[str, Tensor] = {}
    record = LimitsRecord(
        ranks=tuple(limit for case in known for limit in rank_limits(case)),
        successes=tuple(limit for case in known for limit in success_limits(case)),
        budgets=tuple(
            limit for case in known for limit in budget_limits(case, shared, gaussian=gaussian)
        ),
    )
    write_json(run.root / "limits.json", record)
    return record


def cases(cells: Sequence[Cell]) -> Iterator[Case]:
    """Cells of each experiment's first seed. Equal tasks are loaded once."""
    loaded: dict[str, tuple[Setting, Tensors]] = {}
    for cell in cells:
        config = cell.config
        if config.seed != cell.experiment.seeds[0]:
            continue
        key = repr((config.task, config.auxiliary, config.seed))
        if key not in loaded:
            setting = load_setting(config)
            weights = initial_weights(setting.task, config.task, config.seed)
            loaded = {key: (setting, weights)}
        yield Case(cell, *loaded[key])


def rank_limits(case: Case) -> Iterator[RankLimit]:
    """Feasibility of each exact attack on the cell's modality."""
    setting = case.setting
    config, private = case.cell.config, setting.holdings.private
    for attack, feasibility in feasible(config, setting.task, private, case.weights).items():
        yield RankLimit(**case.who, attack=attack, feasibility=feasibility)


def success_limits(case: Case) -> Iterator[SuccessLimit]:
    """One limit per secret to guess, if the defense claims differential privacy."""
    config, private = case.cell.config, case.setting.holdings.private
    parts = partition(private.labels, config.federation.clients, config.federation, config.seed)
    # A client with few rows uses each more often, but a budget needs less noise with many rows.
    # So all sizes are tried, and the weakest protection is reported.
    mechanisms = [
        each for rows in sorted(set(map(len, parts))) if (each := mechanism(config, rows))
    ]
    if not mechanisms:
        return
    for what, chance in guesses(case.setting.task, private):
        yield SuccessLimit(
            **case.who,
            unit=mechanisms[0].unit,
            noise=min(each.noise for each in mechanisms),
            guess=what,
            without=chance,
            one=max(each.bound(chance, 1) for each in mechanisms),
            all=max(each.bound(chance, each.rounds) for each in mechanisms),
            rounds=mechanisms[0].rounds,
        )


def budget_limits(
    case: Case, shared: dict[str, Tensor], *, gaussian: bool
) -> Iterator[BudgetLimit]:
    """What the replies of a simulated and captured cell tell at most."""
    cell = case.cell
    if not cell.simulated or not cell.captures.keys():
        return
    rows = owned(cell)
    noise = least_noise(cell.config, rows)
    known: list[tuple[float, Source]] = [(bits_sent(cell), "bits sent")]
    if noise:
        known.append((noise.clipped, "clipping and noise"))
        if isinstance(nats := measured(cell, noise), float):
            known.append((nats, "noise on public gradients"))
    nats, source = min(known)
    # Gradients were measured at the weights of one round, and say nothing of others.
    single = cell.config.federation.rounds == 1
    lasting = [both for both in known if single or both[1] != "noise on public gradients"]
    of_a_round, lasting_source = min(lasting)
    whole = over_rounds(cell.config, rows, of_a_round)
    more: dict[str, Any] = {}
    public = _public(cell)
    if public is not None and public.mask is not None:
        more = {"exact": most(_alike(public), nats)}
    elif public is not None and len(public.inputs) > public.inputs.shape[1]:
        listed = Listed(public.inputs.flatten(1), public.labels)
        prior = InformationSpectrum.of(public.inputs)
        rate = decibels(gaussian_error(prior.power, nats))
        top = ceiling(cell, noise, prior, shared) if noise and gaussian else ""
        more = {
            "images": len(public.inputs),
            "blind": decibels(listed.error(0.0)),
            "proved": decibels(listed.error(nats)),
            "all_proved": decibels(listed.error(whole)),
            "assumed": rate if isinstance(top, str) else min(top, rate),
        }
    information = {"source": source, "nats": nats, "all_source": lasting_source, "all": whole}
    yield BudgetLimit(**{**case.who, **information, **more})


def _public(cell: Cell) -> Batch | None:
    if not (cell.captures.root / "auxiliary.safetensors").exists():
        return None
    return cell.captures.auxiliary()


def _alike(texts: Batch) -> float:
    """Share of the commonest text among public ones.

    Tell the attacker a list of public texts, one of them the truth: that can only help, and no
    blind guess is right more often than the commonest is there.
    """
    counts = texts.inputs.unique(dim=0, return_counts=True)[1]
    return float(counts.max()) / len(texts.inputs)


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
        posterior = known[name] / noise.std**2 + images.precision
        chosen = torch.cholesky_inverse(torch.linalg.cholesky(posterior))
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
