"""Exact images of a batch from the gradient of a first linear layer followed by ReLU."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.declared import recovered
from attacks.observed.departures import shown
from attacks.observed.first_linear import (
    FirstLinear,
    find_first_linear,
    first_linear_of,
    has_parallel_slopes,
    slopes,
    unit_rows,
)
from attacks.observed.seen_input import range_note
from attacks.observed.single_target import scale_note
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import Proof, certificate
from attacks.solved.relu_dictionary import ReluDictionary, activations_room, find_next_linear
from attacks.solved.signs import Signs
from attacks.solved.sparse_columns import Factors, Pool, factor
from fedsim.defenses.base import Distortion
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

_CHUNK = 4096  # submatrices solved in one pass
_SNAPS = 4  # most roundings of the pixels to bytes
_SNAPPED = 0.99
"""Error that bytes may leave, as a share of what the pixels left before."""
_PIXEL_ERROR = 0.5 / 255
"""Largest error of an accepted or certified pixel in [0, 1]; it still rounds to the right byte."""
_SLOPES_OUTSIDE = 1e-3
"""Largest part of an image's slopes outside the span of the batch's, as a share of their norm."""
_IN_SPAN_AGREEMENT = 0.99
"""Least agreement between silent units and negative inputs of an image that counts as in the
span."""
_PROVABLE_AGREEMENT = 0.85
"""Least mean agreement that is worth the proof by gradient; units that switch between local steps
lower it."""
_PATIENCE = 40
"""Passes without a better agreement after which the search ends, once a proof was tried."""


@dataclass(frozen=True)
class Spear(Attack):
    """Recover a whole batch exactly from a first linear layer with bias and ReLU.

    SPEAR (Dimitrov et al. 2024): the gradient of the layer is ``D^T [X, 1]``, of rank ``B`` for
    ``B`` examples, and an SVD yields both factors up to a ``B x B`` matrix ``Q``. ReLU sets entries
    of each column of ``D^T = U Q`` to zero, so that the null vector of ``B - 1`` random rows of
    ``U`` is occasionally a column of ``Q``. The sparsest independent null vectors are taken, and
    replaced while that improves the agreement between the zeros of ``D`` and the signs of
    ``X W^T + b`` (the paper's score lambda).

    The columns are found first through the activations, where another linear layer takes them: they
    are a dictionary of its gradient (``ReluDictionary``), in the spirit of SPEAR++ (Bakarsky et al.
    2025), which replaces the ``2^(B-1)`` samples by dictionary learning. Sampling adds what is
    missing, and is all there is for a network with one hidden layer.

    We differ from SPEAR in four points. (1) Rows are drawn from the units with the lowest inputs at
    the leading singular vector, a mean of the images: natural images are bright or dark together,
    and such rows yield a column about a hundred times more often. (2) The bias is a column of the
    same factorisation, which fixes the scale of each image. (3) Zeros are decided row by row, from
    the rounding of the wire's dtype and the residual outside the rank. (4) Labels are inferred from
    the slopes at the first layer, so that none have to be granted.

    The attack covers FedSGD, and FedAvg with SGD or momentum: an update of several local steps has
    the rank of all examples used, and stays sparse as long as units do not switch. An observation
    whose spectrum shows no rank is refused; under noise, the number of examples tells the rank.

    Confidence is ``certified`` if the replayed update of the whole batch equals the observed one up
    to rounding and that rounding moves no pixel by more than half a byte; an image that the model
    fits well may have too small a gradient for this. In a batch that is not proven, an image whose
    own lambda is at least 0.99 is ``in_span``, any other a ``guess``. The objective is the relative
    error of the update.

    Attributes:
        samples: largest number of random submatrices.
        adaptive: turn the images that were read into those that the declared defense changed.
    """

    title: ClassVar[str] = "SPEAR"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"inputs"})

    samples: Annotated[int, Field(ge=1)] = 1_000_000
    adaptive: bool = False

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Examples compared with the rank of the first layer and what either search can find."""
        try:
            linear = first_linear_of(prospect)
        except CannotAttack as error:
            return Feasibility("red", "examples", prospect.examples, None, error.reason)
        limit = min(linear.out_features, linear.in_features + 1) - 1
        likely, most, partly = self._sampled(), max(prospect.examples), ""
        if room := activations_room(prospect, linear):
            likely = max(likely, room)
            if most > likely:
                partly = f"{linear.out_features} units suffice for about B = {likely}"
        elif most > likely:
            drawn = f"{self.samples:,}"
            partly = f"about 2^(B-1) submatrices are needed; {drawn} suffice for B = {likely}"
        return prospect.judge("examples", prospect.examples, limit, partly)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The images of the sparsest columns found, with their confidence."""
        network = task.model(observation.sent, device=job.device).double()
        mixing = observation.knowledge.train_mode
        if mixing and any(isinstance(part, _BatchNorm) for part in network.modules()):
            raise CannotAttack(
                "batch normalisation in training mode mixes the examples of a batch, so that no "
                "example's slopes are its own",
                "Choose an attack that searches.",
            )
        layer = find_first_linear(network, task, rng)
        known = observation.knowledge.num_examples
        factors = factor(unit_rows(observation, layer, job.device), known)
        linear = network.get_submodule(layer.module)
        assert isinstance(linear, nn.Linear)
        signs = Signs(factors, linear)
        pool = Pool(factors, signs.quiet())
        update = _Update(observation, task, network, layer, factors, signs)
        dictionary = update.dictionary(linear, rng)
        silent = list(dictionary.silent(rng, job)) if dictionary else []
        if silent:
            pool.offer(torch.stack(silent))
        columns, agreement = signs.best(pool)
        if len(silent) == factors.rank:
            settled, reached = signs.settle(pool, torch.stack(silent))
            columns, agreement = (settled, reached) if reached > agreement else (columns, agreement)
        guess = update.judge(columns) if agreement >= _PROVABLE_AGREEMENT else None
        done, expired = 0, False
        # Sampling adds nothing to a whole dictionary where it could not have found the batch alone.
        whole = len(silent) == factors.rank and factors.rank > self._sampled()
        idle = _PATIENCE if whole else 0
        while done < self.samples and not (guess and (idle == _PATIENCE or is_found(guess))):
            if expired := job.expired:
                break
            changed = pool.sample(_CHUNK, rng)
            done, idle = done + _CHUNK, idle + 1
            better, reached = signs.best(pool) if changed else (columns, agreement)
            if reached > agreement:
                pool.offer(update.silent(better))
                better, reached = signs.best(pool)
            if reached > agreement:
                columns, agreement, idle = better, reached, 0
                guess = update.judge(columns) if agreement >= _PROVABLE_AGREEMENT else None
            job.report(done, 1 - agreement, "")
        steps = done + (dictionary.programs if dictionary else 0)
        best = update.caused(guess or update.judge(columns))
        best = replace(best, steps=steps, expired=expired)
        return recovered(best, observation, network) if self.adaptive else best

    def _sampled(self) -> int:
        """Largest batch for which about ``2^(B-1)`` submatrices are no more than ``samples``."""
        return 1 + int(math.log2(self.samples))


_GUESS: Certificate = "guess"
_MIXED = (
    "the slopes of all examples are parallel, as with one output, so that differences of two "
    "examples have as many zeros as one, and sparse columns need not be examples"
)


@dataclass(frozen=True, slots=True)
class _Explained:
    """Images with their classes, how often each occurs, and what they prove."""

    images: Tensor
    labels: Tensor
    times: Tensor
    proof: Proof


@dataclass(frozen=True)
class _Update:
    """One update, and what of it stands in the network's first linear layer."""

    observation: Observation
    task: Task
    network: nn.Module
    layer: FirstLinear
    factors: Factors
    signs: Signs

    @property
    def _mixed(self) -> bool:
        several = self.factors.rank > 1
        return several and has_parallel_slopes(self.network, self.task, self.layer)

    def dictionary(self, linear: nn.Linear, rng: torch.Generator) -> ReluDictionary | None:
        """The activations' dictionary, if a layer that takes them sent a gradient of that rank."""
        if self.factors.rank <= 1:
            return None
        name = find_next_linear(self.network, self.task, self.layer, rng)
        if name is None or name not in self.observation.received:
            return None
        gradient = self.observation.update((name,))[name]
        if min(gradient.shape) < self.factors.rank or not bool(gradient.isfinite().all()):
            return None
        return ReluDictionary(self.factors, linear, gradient.to(self.factors.left.device))

    def silent(self, columns: Tensor) -> Tensor:
        """The silent units of each image and class whose slopes lie in the gradient's span.

        An image depends on the columns of all other images, not on its own. If a single column is
        wrong, its image is right, and the image then determines the column.
        """
        images = self.layer.pixels(self.factors.unmix(columns)[0]).nan_to_num(0.5).clamp(0, 1)
        slope = self._slopes(images).flatten(0, 1)
        outside = slope - slope @ self.factors.left @ self.factors.left.T
        return slope[outside.norm(dim=1) < _SLOPES_OUTSIDE * slope.norm(dim=1)] == 0

    def _slopes(self, images: Tensor) -> Tensor:
        """Of each image's loss at the live units, for each class: ``(image, class, unit)``."""
        images = images.reshape(-1, *self.task.spec.input_shape)
        return slopes(self.network, self.task, self.layer, images)[:, :, self.factors.live]

    def caused(self, guess: Reconstruction) -> Reconstruction:
        """With the cause why one image does not make the rest of the update, where a test tells."""
        if guess.certified or guess.note or len(guess.guess) != 1:
            return guess
        weight = self.observation.update((self.layer.weight,))[self.layer.weight]
        better = shown(self.observation, self.task, guess.guess, weight, guess.objective or 1.0)
        if better is None or not better.note:
            return guess
        return replace(better, confidence=guess.confidence)

    def judge(self, columns: Tensor) -> Reconstruction:
        """The images of the columns, their labels and their confidence."""
        observation, task, layer, factors = self.observation, self.task, self.layer, self.factors
        values, seen = factors.unmix(columns)
        inputs = layer.pixels(values).nan_to_num(0.5)
        facts, first = observation.knowledge, [(layer.weight, layer.bias)]

        def explained(images: Tensor) -> _Explained:
            images = images.reshape(-1, *task.spec.input_shape)
            slope = self._slopes(images)
            shares = (slope * seen[:, None]).sum(2) / slope.square().sum(2).clamp(min=1e-300)
            misses = (seen[:, None] - shares[:, :, None] * slope).norm(dim=2)
            labels = misses.where(shares > 0, torch.inf).argmin(1)
            share = shares.gather(1, labels[:, None])[:, 0].clamp(min=1e-300)
            count = facts.num_examples or len(images)
            # If the rank is below the number of examples, an image may occur several times.
            times = (share / share.min()).round().clamp(1, 1 + count - len(images))
            weights = share if observation.kind == "gradient" else times
            batch = Batch(images, labels)
            proof = prove(observation, task, batch, first, weights)
            return _Explained(images, labels, times, proof)

        best = explained(inputs.clamp(0, 1))
        images, labels, times, proof = best.images, best.labels, best.times, best.proof
        for _ in range(_SNAPS if not proof.holds else 0):
            # Pixels are bytes: those of a coarse wire round to them, and exact slopes fit better.
            snapped = ((inputs * 255).round() / 255).nan_to_num(0.5).clamp(0, 1)
            batch = Batch(snapped.reshape(images.shape), labels)
            again = prove(observation, task, batch, first, times)
            if again.error > _SNAPPED * proof.error:
                break
            images, proof = batch.inputs, again
            slope = self._slopes(images)[torch.arange(len(images)), labels]
            inputs = layer.pixels(factors.inputs(times[:, None] * slope))
        if not proof.holds and range_note(layer.pixels(values), task):
            other = explained(layer.pixels(values).nan_to_num(0.5))
            if other.proof.holds or other.proof.error < proof.error / 2:
                images, labels, times, proof = other.images, other.labels, other.times, other.proof
        size = max(1.0, float(values.abs().max())) if proof.holds else 1.0
        # As many examples as units or pixels: any column lies in the span, and is no evidence.
        room = factors.left.shape[1] < min(factors.left.shape[0], factors.right.shape[1])
        # A number that is only claimed or tried cuts the spectrum where it need not end.
        room = room and (factors.ends or facts.has("num_examples", "counted"))
        agreed = self.signs.agreement(columns)
        spread = 3 * factors.spread(seen)
        sharp = spread <= _PIXEL_ERROR * size
        levels: list[Certificate] = [
            certificate(proof, "in_span" if good and room else "guess", sharp=bool(right))
            for right, good in zip(sharp, agreed >= _IN_SPAN_AGREEMENT, strict=True)
        ]
        places = torch.repeat_interleave(torch.arange(len(times)), times.long().cpu())
        missing = max(0, (facts.num_examples or 0) - len(places))
        notes = (
            f"{missing} of the examples left no independent gradient" if missing else "",
            scale_note(_factor(observation, proof)) if proof.holds and bool(sharp.any()) else "",
            range_note(images, task) if proof.holds else "",
            "" if proof.holds or not self._mixed else _MIXED,
            "" if not proof.holds or bool(sharp.all()) else _coarse(float(spread.max())),
        )
        grey = images.new_full((missing, *images.shape[1:]), 0.5).float().cpu()
        return Reconstruction(
            Batch(
                torch.cat([images.float().cpu()[places], grey]),
                torch.cat([labels.cpu()[places], torch.full((missing,), -1)]),
            ),
            objective=proof.error,
            confidence=(*(levels[i] for i in places.tolist()), *[_GUESS] * missing),
            note="; ".join(filter(None, notes)),
        )


def _coarse(error: float) -> str:
    return (
        f"rounding of what was sent moves a pixel by up to {255 * error:.2g} of 255 levels, and "
        "half a level is the most that is certified"
    )


def _factor(observation: Observation, proof: Proof) -> float:
    """What the loss's gradient was multiplied by; 1 where the step size is not known."""
    known = observation.knowledge
    if known.defense or known.num_examples is None:
        return 1.0
    stated = known.has("learning_rate", "counted")
    return proof.factor if observation.kind == "gradient" or stated else 1.0


def is_found(guess: Reconstruction) -> bool:
    """Whether the search may end: the batch is proven, or every image is at least in the span."""
    return guess.certified or "guess" not in (guess.confidence or ())
