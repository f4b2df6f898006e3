"""Exact images of a batch, from the gradient of a first layer that ReLU follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.first_linear import (
    FirstLinear,
    find_first_linear,
    first_linear_of,
    prove,
    slopes,
    unit_rows,
)
from attacks.solved.cuts import CUTS
from attacks.solved.signs import Signs
from attacks.solved.sparse_columns import Factors, Pool, factor
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch

_CHUNK = 4096  # submatrices solved in one pass


@dataclass(frozen=True)
class Spear(Attack):
    """Exact batches of a first layer with bias and ReLU (SPEAR, Dimitrov et al. 2024).

    The layer's gradient is ``D^T [X, 1]`` of rank ``B``: an SVD gives both factors up to a
    ``B x B`` matrix ``Q``. ReLU makes some of each column of ``D^T = U Q`` zero, so that null
    vectors of random submatrices of ``B - 1`` rows of ``U`` are columns of ``Q`` now and then. The
    sparsest independent ones are taken, and exchanged where that lets the zeros of ``D`` agree
    better with the signs of ``X W^T + b`` (the paper's score lambda).

    We differ from SPEAR in four things. Rows are drawn from the units that are lowest at a mean of
    the images, which the leading singular vector is: natural images are bright or dark at the same
    units, so that null vectors of such rows hit a hundred times more often. The bias is a column of
    the same factorisation, which gives each image its scale. Zeros are told from what the wire's
    dtype and the part of the gradient outside its rank say of the rounding, row by row. Labels are
    those whose slopes at the first layer are the observed ones, so none need be granted.

    FedSGD, and FedAvg updates by SGD or momentum: several local steps have the rank of all examples
    that they saw, and stay sparse while units do not switch. The spectrum tells whether it can
    work; else the observation is refused.

    Confidence is ``certified`` where the update of the whole batch, replayed, is the observed one
    but for rounding, and rounding leaves every pixel right to half a byte, for which the gradient
    of an image that the model knows well may be too small. ``in_span`` is an image whose silent
    units are its negative ones (its own lambda is at least 0.99) in a batch that is not proven,
    ``guess`` any other. The objective is the relative error of the update.

    Attributes:
        samples: random submatrices at most.
        tolerance: relative error of a float32 gradient that counts as rounding; a coarser wire
            adds its own, and none above 0.01 certifies.
    """

    title: ClassVar[str] = "SPEAR"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    samples: Annotated[int, Field(ge=1)] = 1_000_000
    tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-4

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Examples against the rank of the first layer, and the submatrices that are drawn."""
        try:
            linear = first_linear_of(prospect)
        except CannotAttack as error:
            return Feasibility("red", "examples", prospect.examples, None, error.reason)
        limit = min(linear.out_features, linear.in_features + 1) - 1
        likely, partly = 1 + int(math.log2(self.samples)), ""
        if max(prospect.examples) > likely:
            drawn = f"{self.samples:,}"
            partly = f"of 2^(B-1) submatrices it draws {drawn}, enough for about B = {likely}"
        return prospect.judge("examples", prospect.examples, limit, partly)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The sparsest columns found, and what can be said for them."""
        network = task.model(observation.sent, device=job.device).double()
        layer = find_first_linear(network, task, rng)
        known = observation.knowledge.num_examples
        factors = factor(unit_rows(observation, layer, job.device), known)
        linear = network.get_submodule(layer.module)
        assert isinstance(linear, nn.Linear)
        signs = Signs(factors, linear)
        pool = Pool(factors, signs.quiet())

        def judge(columns: Tensor) -> Reconstruction:
            return self._judge(observation, task, network, layer, factors, signs, columns)

        columns, agreement = signs.best(pool)
        guess = judge(columns) if agreement >= CUTS.provable_agreement else None
        done, idle, expired = 0, 0, False
        while done < self.samples and not (guess and (idle == CUTS.patience or is_found(guess))):
            if expired := job.expired:
                break
            changed = pool.sample(_CHUNK, rng)
            done, idle = done + _CHUNK, idle + 1
            better, found = signs.best(pool) if changed else (columns, agreement)
            if found > agreement:
                pool.offer(self._silent(task, network, layer, factors, better))
                better, found = signs.best(pool)
            if found > agreement:
                columns, agreement, idle = better, found, 0
                guess = judge(columns) if agreement >= CUTS.provable_agreement else None
            job.report(done, 1 - agreement, "")
        return replace(guess or judge(columns), steps=done, expired=expired)

    def _silent(
        self,
        task: Task,
        network: nn.Module,
        layer: FirstLinear,
        factors: Factors,
        columns: Tensor,
    ) -> Tensor:
        """Where the images would be silent, of those whose slopes the gradient has room for.

        An image depends on the columns of all others and not on its own. Where one column is
        wrong, its image is right and tells the column.
        """
        images = factors.unmix(columns)[0].nan_to_num(0.5).clamp(0, 1)
        made = slopes(network, task, layer, images.reshape(-1, *task.spec.input_shape))
        made = made[:, :, factors.live].flatten(0, 1)
        outside = made - made @ factors.left @ factors.left.T
        return made[outside.norm(dim=1) < CUTS.slopes_outside * made.norm(dim=1)] == 0

    def _judge(
        self,
        observation: Observation,
        task: Task,
        network: nn.Module,
        layer: FirstLinear,
        factors: Factors,
        signs: Signs,
        columns: Tensor,
    ) -> Reconstruction:
        """The images, their labels, and what can be said for them."""
        inputs, seen = factors.unmix(columns)
        images = inputs.nan_to_num(0.5).clamp(0, 1).reshape(-1, *task.spec.input_shape)
        made = slopes(network, task, layer, images)[:, :, factors.live]
        shares = (made * seen[:, None]).sum(2) / made.square().sum(2).clamp(min=1e-300)
        misses = (seen[:, None] - shares[:, :, None] * made).norm(dim=2)
        labels = misses.where(shares > 0, torch.inf).argmin(1)
        share = shares.gather(1, labels[:, None])[:, 0].clamp(min=1e-300)
        count = observation.knowledge.num_examples or len(images)
        # Where the rank is less than the count, an image may stand twice in the batch.
        times = (share / share.min()).round().clamp(1, 1 + count - len(images))
        weights = share if observation.kind == "gradient" else times
        proof = prove(observation, task, Batch(images, labels), weights, layer, self.tolerance)
        agreed, sharp = signs.agreement(columns), 3 * factors.spread(seen) <= CUTS.pixel_error
        levels: list[Certificate] = [
            "certified" if proof.exact and bool(right) else "in_span" if good else "guess"
            for right, good in zip(sharp, agreed >= CUTS.in_span_agreement, strict=True)
        ]
        places = torch.repeat_interleave(torch.arange(len(times)), times.long().cpu())
        missing = count - len(places)
        return Reconstruction(
            Batch(images.float().cpu()[places], labels.cpu()[places]),
            objective=proof.error,
            confidence=tuple(levels[i] for i in places.tolist()),
            note=f"{missing} of the examples left no gradient of their own." if missing > 0 else "",
        )


def is_found(guess: Reconstruction) -> bool:
    """Whether no more can be found: the batch is proven, or nothing speaks against any image."""
    levels = guess.confidence or ()
    return "certified" in levels or "guess" not in levels
