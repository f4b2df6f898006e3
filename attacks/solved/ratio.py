"""Images as ratios of weight and bias gradients at single units of the first layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.first_linear import (
    FirstLinear,
    UnitRows,
    find_first_linear,
    first_linear_of,
    has_parallel_slopes,
    slopes,
    unit_rows,
)
from attacks.observed.seen_input import range_note
from attacks.observed.single_target import scale_note
from attacks.proofs.verdict import NO_PROOF, Proof, bound, certificate
from attacks.solved.spear import PIXEL_ERROR
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import MULTIPLES
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch

_RANKS: dict[Certificate, int] = {level: rank for rank, level in enumerate(get_args(Certificate))}
_GUESS: Certificate = "guess"
_BEYOND = 1e-3
"""By how much rounding may take a pixel out of [0, 1]."""
_AGREED = 1e-3
"""Relative difference of two candidates' factors that float32 explains."""
_RATIO_SIGMAS = 30.0
"""Standard deviations of rounding by which a pixel or slope may be off."""
_RATIO_SAME_IMAGE = 0.01
"""Root mean square distance below which two images are one."""


@dataclass(frozen=True)
class Ratio(Attack):
    """Read an image off every unit of the first layer that a single example activated.

    At such a unit ``j`` the ratio ``dL/dW_j / dL/db_j`` is the image itself (Phong et al. 2017);
    at any other unit it is a mixture of images. A ratio is kept if all its values lie in [0, 1], or
    it is certified.
    Equal ratios of several units form one candidate, as in SRATTA (Marchand et al. 2023), and
    candidates with the most units come first. We differ from SRATTA, which is not about images and
    identifies candidates by exact equality and by their activations in other rounds.

    Confidence is ``certified`` if the candidate alone, with one of the classes, reproduces the
    observed bias gradient at two or more of its units, including its scale. Agreement of several
    units is not enough: mixtures agree too if the examples have parallel slopes at the output, as
    with two classes, but their slope is not that of one image. The proof requires the number of
    examples, and a gradient or one step of SGD of known size. A candidate of two or more units
    without the proof is ``in_span``, unless slopes are parallel. A candidate of one unit may be a
    mixture and is a ``guess``.
    Images that no unit isolates are guessed grey.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Number of examples that have two units of the first layer to themselves."""
        try:
            linear = first_linear_of(prospect)
        except CannotAttack as error:
            return Feasibility("red", "examples", prospect.examples, None, error.reason)
        alone = []
        for batch in prospect.batches():
            active = linear(batch.inputs.flatten(1).double()) > 0
            alone.append(int(((active & (active.sum(0) == 1)).sum(1) > 1).sum()))
        what, share = "examples with two units of their own", sum(alone) / sum(prospect.examples)
        if share == 1:
            return prospect.qualified(Feasibility("green", what, tuple(alone), None))
        reason = f"{share:.0%} of the examples, at the first weights"
        return Feasibility("amber" if share else "red", what, tuple(alone), None, reason)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The images that single units isolate, and grey for the others."""
        network = task.model(observation.sent, device=job.device).double()
        layer = find_first_linear(network, task, rng)
        rows = unit_rows(observation, layer, job.device)
        images, units = candidates(rows, layer)
        several = units.sum(1) > 1
        predicted = slopes(network, task, layer, images.reshape(-1, *task.spec.input_shape))
        count = observation.knowledge.num_examples
        share = _share(observation)
        labels, proofs, fitted = _explain(rows, units, predicted, share)
        factor = 1.0
        if (
            count
            and _single_step(observation)
            and not any(
                proof.holds for proof, more in zip(proofs, several.tolist(), strict=True) if more
            )
        ):
            factor = _common(fitted[several & (fitted > 0)] * count, count)
            if factor > 0:
                labels, proofs, _ = _explain(rows, units, predicted, factor / count)
                factor = factor / (share * count) if share is not None else 1.0
        mixed = has_parallel_slopes(network, task, layer)  # so that mixtures agree as well
        levels = [
            certificate(proof, "in_span" if more and not mixed else "guess", sharp=more)
            for proof, more in zip(proofs, several.tolist(), strict=True)
        ]
        sure = [proof.holds and more for proof, more in zip(proofs, several.tolist(), strict=True)]
        order = sorted(range(len(levels)), key=lambda i: (_RANKS[levels[i]], -int(units[i].sum())))
        inside = ((images >= -_BEYOND) & (images <= 1 + _BEYOND)).all(1)
        order = [i for i in order if bool(inside[i]) or sure[i]]
        order = _different(images, order)
        if count is None:
            order = [i for i in order if levels[i] != "guess"] or order[:1]
        blank = max(0, (count or 1) - len(order))
        order = order[:count]
        guess = images[order].float().cpu()
        guess = torch.cat([guess, guess.new_full((blank, images.shape[1]), 0.5)])
        confidence = [*(levels[i] for i in order), *[_GUESS] * blank]
        notes = (
            f"no unit isolates {blank} of the examples, guessed grey" if blank else "",
            scale_note(factor) if any(sure[i] for i in order) else "",
            range_note(guess, task) if any(sure[i] for i in order) else "",
        )
        return Reconstruction(
            Batch(
                guess.reshape(-1, *task.spec.input_shape),
                torch.cat([labels[order].cpu(), torch.full((blank,), -1)]),
            ),
            confidence=tuple(confidence),
            note="; ".join(filter(None, notes)),
        )


def _explain(
    rows: UnitRows, units: Tensor, predicted: Tensor, share: float | None
) -> tuple[Tensor, list[Proof], Tensor]:
    """The class of each candidate, and what it proves of the bias gradient at its units.

    Third, the share that fits it best.

    Args:
        rows: as observed.
        units: units of each candidate, bool ``(candidate, unit)``.
        predicted: its slopes for each class, ``(candidate, class, unit)``.
        share: factor of one example's slope in the update; None if unknown.
    """
    seen = rows.matrix[:, -1] * units
    predicted = predicted * units[:, None]
    fitted = (predicted * seen[:, None]).sum(2) / predicted.square().sum(2).clamp(min=1e-300)
    scale = fitted if share is None else torch.full_like(fitted, share)
    misses = (seen[:, None] - scale[:, :, None] * predicted).norm(dim=2)
    misses, labels = misses.where(fitted > 0, torch.inf).min(1)
    fitted = fitted.gather(1, labels[:, None])[:, 0]
    if share is None:
        return labels, [NO_PROOF] * len(labels), fitted
    sizes = seen.norm(dim=1).clamp(min=1e-300)
    errors, rounding = misses / sizes, (rows.noise * units).norm(dim=1) / sizes
    pairs = zip(errors.tolist(), rounding.tolist(), strict=True)
    return labels, [Proof(error, bound(wire)) for error, wire in pairs], fitted


def _common(factors: Tensor, count: int) -> float:
    """The factor of the loss that the candidates agree on; 0 if none or a single one speaks for it.

    Of a single example one candidate is enough, since nothing can be mixed with it.
    """
    if count == 1 and len(factors):
        return float(factors[0])
    near = (factors[:, None] / factors - 1).abs() < _AGREED
    votes = near.sum(1) if len(factors) else factors
    return float(factors[votes.argmax()]) if len(factors) and int(votes.max()) > 1 else 0.0


def candidates(rows: UnitRows, layer: FirstLinear) -> tuple[Tensor, Tensor]:
    """Ratios that are images ``(candidate, input)``, and bool ``(candidate, unit)`` their units.

    They lie in [0, 1], or several units agree on them.
    """
    bias = rows.matrix[:, -1]
    error = _RATIO_SIGMAS * rows.noise / bias.abs().clamp(min=1e-300)
    images = layer.pixels(rows.matrix[:, :-1] / bias.where(bias != 0, 1)[:, None])
    if layer.seen is not None:
        error = error / layer.seen.scale.abs().min()
    inside = (images >= -error[:, None]).all(1) & (images <= 1 + error[:, None]).all(1)
    usable = (bias != 0) & (error < PIXEL_ERROR * images.abs().amax(1).clamp(min=1))
    near = torch.cdist(images, images) <= (error[:, None] + error) * images.shape[1] ** 0.5
    agreed = (near & usable & usable[:, None]).sum(1) > 1
    good = torch.nonzero((inside | agreed) & usable)[:, 0]
    images, error = images[good], error[good]
    # Largest distance between two readings of the same image that rounding can cause.
    reach = (error[:, None] + error) * images.shape[1] ** 0.5
    same = (torch.cdist(images, images) <= reach).fill_diagonal_(True)
    unread = torch.ones_like(good, dtype=torch.bool)
    readings, units = [], []
    for i in same.sum(1).argsort(descending=True, stable=True).tolist():
        if unread[i]:
            cluster = same[i] & unread
            unread &= ~cluster
            members = torch.nonzero(cluster)[:, 0]
            readings.append(images[members[error[members].argmin()]])
            units.append(torch.zeros_like(inside).index_fill(0, good[members], True))
    if not readings:
        return images, inside.new_zeros(0, len(inside))
    return torch.stack(readings), torch.stack(units)


def _different(images: Tensor, order: list[int]) -> list[int]:
    """``order`` without images close to an earlier one, which are mixtures with a faint second."""
    distinct: list[int] = []
    for i in order:
        distance = (images[distinct] - images[i]).square().mean(1).sqrt()
        if not bool((distance < _RATIO_SAME_IMAGE).any()):
            distinct.append(i)
    return distinct


def _single_step(observation: Observation) -> bool:
    """Whether the update is a multiple of one gradient."""
    known = observation.knowledge
    single = known.local_steps == 1 and known.optimizer in MULTIPLES
    return observation.kind == "gradient" or single


def _share(observation: Observation) -> float | None:
    """Factor of one example's slope in the update; None if it is not known exactly."""
    known = observation.knowledge
    if known.num_examples is None:
        return None
    if observation.kind == "gradient":
        return 1 / known.num_examples
    if known.local_steps != 1 or known.optimizer not in MULTIPLES - {None}:
        return None
    return None if known.learning_rate is None else known.learning_rate / known.num_examples
