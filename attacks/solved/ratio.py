"""Images read off single units of the first layer: the weight gradient over the bias gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.cuts import CUTS as OBSERVED
from attacks.observed.first_linear import (
    UnitRows,
    find_first_linear,
    first_linear_of,
    slopes,
    unit_rows,
)
from attacks.solved.cuts import CUTS
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch

_RANKS: dict[Certificate, int] = {"certified": 0, "in_span": 1, "guess": 2}
_GUESS: Certificate = "guess"


@dataclass(frozen=True)
class Ratio(Attack):
    """Rows ``dL/dW_j / dL/db_j`` of units that one example alone made active (Phong et al. 2017).

    Such a row is the image itself; any other is a mixture. A row is kept where all of it lies in
    [0, 1], and rows of several units that agree are one candidate, as in SRATTA (Marchand et al.
    2023), which has no images and tells candidates by bytes and by their activations in other
    rounds. The candidates of most units are taken first.

    Confidence is ``certified`` where the candidate alone, with one of the classes, makes the
    observed bias gradient at two or more of its units, scale included: mixtures may agree where
    examples have parallel slopes at the output, as with two classes, but their slope is not that
    of one image. It takes the number of examples, and a gradient or one step of SGD of a known
    size. ``in_span`` is a candidate of two or more units without that, ``guess`` one of a single
    unit, which may be a mixture. Images that no unit singles out are grey.

    Attributes:
        tolerance: relative error of a float32 slope that counts as rounding.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-4

    def feasible(self, prospect: Prospect) -> Feasibility:
        """How many examples have two units to themselves at the first layer."""
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
        """The images that units single out, grey where none does."""
        network = task.model(observation.sent, device=job.device).double()
        layer = find_first_linear(network, task, rng)
        rows = unit_rows(observation, layer, job.device)
        images, units = candidates(rows)
        several = units.sum(1) > 1
        made = slopes(network, task, layer, images.reshape(-1, *task.spec.input_shape))
        labels, proven = self._explain(rows, units, made, _share(observation))
        levels: list[Certificate] = [
            "certified" if sure else "in_span" if more else "guess"
            for sure, more in zip((proven & several).tolist(), several.tolist(), strict=True)
        ]
        order = sorted(range(len(levels)), key=lambda i: (_RANKS[levels[i]], -int(units[i].sum())))
        order = _different(images, order)
        count = observation.knowledge.num_examples
        if count is None:
            order = [i for i in order if levels[i] != "guess"] or order[:1]
        blank = max(0, (count or 1) - len(order))
        order = order[:count]
        guess = images[order].clamp(0, 1).float().cpu()
        guess = torch.cat([guess, guess.new_full((blank, images.shape[1]), 0.5)])
        confidence = [*(levels[i] for i in order), *[_GUESS] * blank]
        return Reconstruction(
            Batch(
                guess.reshape(-1, *task.spec.input_shape),
                torch.cat([labels[order].cpu(), torch.full((blank,), -1)]),
            ),
            confidence=tuple(confidence),
            note=f"no unit singles out {blank} of the examples, guessed grey." if blank else "",
        )

    def _explain(
        self, rows: UnitRows, units: Tensor, made: Tensor, share: float | None
    ) -> tuple[Tensor, Tensor]:
        """The class of each candidate, and whether it makes the bias gradient at its units.

        Args:
            rows: as observed.
            units: where each candidate was read, ``(candidate, unit)``.
            made: its slopes, ``(candidate, class, unit)``.
            share: of one example's slope in an observed one; None where it is not known.
        """
        seen = rows.matrix[:, -1] * units
        made = made * units[:, None]
        fitted = (made * seen[:, None]).sum(2) / made.square().sum(2).clamp(min=1e-300)
        scale = fitted if share is None else torch.full_like(fitted, share)
        misses = (seen[:, None] - scale[:, :, None] * made).norm(dim=2)
        misses, labels = misses.where(fitted > 0, torch.inf).min(1)
        rounding = CUTS.ratio_sigmas * (rows.noise * units).norm(dim=1)
        allowed = self.tolerance * seen.norm(dim=1) + rounding
        fine = allowed <= OBSERVED.loosest_proof * seen.norm(dim=1)
        return labels, (misses <= allowed) & fine & (share is not None)


def candidates(rows: UnitRows) -> tuple[Tensor, Tensor]:
    """Rows that are images ``(candidate, input)``, and their units, bool ``(candidate, unit)``."""
    bias = rows.matrix[:, -1]
    error = CUTS.ratio_sigmas * rows.noise / bias.abs().clamp(min=1e-300)
    images = rows.matrix[:, :-1] / bias.where(bias != 0, 1)[:, None]
    inside = (images >= -error[:, None]).all(1) & (images <= 1 + error[:, None]).all(1)
    good = torch.nonzero(inside & (bias != 0) & (error < CUTS.pixel_error))[:, 0]
    images, error = images[good], error[good]
    # The same image from several units; the largest distance that rounding makes of it.
    reach = (error[:, None] + error) * images.shape[1] ** 0.5
    same = torch.cdist(images, images) <= reach
    left = torch.ones_like(good, dtype=torch.bool)
    found, units = [], []
    for i in same.sum(1).argsort(descending=True, stable=True).tolist():
        if left[i]:
            own = same[i] & left
            left &= ~own
            members = torch.nonzero(own)[:, 0]
            found.append(images[members[error[members].argmin()]])
            units.append(torch.zeros_like(inside).index_fill(0, good[members], True))
    if not found:
        return images, inside.new_zeros(0, len(inside))
    return torch.stack(found), torch.stack(units)


def _different(images: Tensor, order: list[int]) -> list[int]:
    """``order`` without images that look like an earlier one: mixtures with a trace of another."""
    kept: list[int] = []
    for i in order:
        distance = (images[kept] - images[i]).square().mean(1).sqrt()
        if not bool((distance < CUTS.ratio_same_image).any()):
            kept.append(i)
    return kept


def _share(observation: Observation) -> float | None:
    """What one example's slope is multiplied with in the update, where that is known exactly."""
    known = observation.knowledge
    if known.num_examples is None:
        return None
    if observation.kind == "gradient":
        return 1 / known.num_examples
    if known.local_steps != 1 or known.optimizer not in {"sgd", "momentum"}:
        return None
    return None if known.learning_rate is None else known.learning_rate / known.num_examples
