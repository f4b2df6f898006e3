"""Exact inversion of a small convolutional network for one image, without any search."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.departures import EXPLAINED, departure, several_note, shown
from attacks.observed.replay import gradient_or_multiple, replay, step_length
from attacks.observed.seen_input import check_plain, range_note
from attacks.observed.single_target import (
    SingleTarget,
    fitted_factor,
    relative_error,
    scale_note,
    single_target,
    target_note,
)
from attacks.observed.smoothed_labels import smoothing_note
from attacks.proofs.consistency import picture_support
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import certificate
from attacks.solved.estimate import ImageEstimate, Received, estimate
from attacks.solved.sequence import Sequence
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.network import copied
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

SOLVED_IMAGE = 1e-5
"""Largest relative error of the message at which a proof is sharp: a pixel that is off by five
bytes shows from about 2e-5 on."""


@dataclass(frozen=True)
class ClosedForm(Attack):
    """Recover one image by solving each layer's gradient equations, from the last layer back.

    This is R-GAP (Zhu and Blaschko 2021) for convolutions that are each followed by an invertible
    activation. The linear layer at the end yields its input as ``G_W^T g_b / ||g_b||^2``. Further
    back, the inverse activation yields the output of a convolution, and back-propagation yields the
    loss gradient at that output. Both the output and the weight gradient are linear in the input of
    the convolution, which is recovered by least squares.

    A linear layer that takes the image yields it alone, whatever follows.

    We differ from R-GAP in two things. It uses no biases and has to search for the scale of the
    gradient, which the bias gradient of the last layer provides here. And where noise, rounding,
    pruning, signs or clipping keep the solution from explaining the update, as their errors grow
    from layer to layer, the guess is the likeliest image under all equations at once and a Gaussian
    of the attacker's auxiliary images, or of natural images in general. How the update was
    distorted is read off the update, see ``attacks.observed.distortion``; a defense need not be
    declared. If the update is expected to tell next to nothing, the guess is the prior's mean.

    Confidence is ``certified`` if the gradient of the guess equals the observed one up to float32
    rounding and the factor that the last layer tells, see ``attacks.observed.single_target``, and
    ``consistent`` if noise of a known size explains what differs, and no picture near it. The
    objective is the relative error of that gradient. Solved values are not cut to [0, 1].
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Whether the layers can be inverted and each reply holds a single example."""
        what, counts = "examples", prospect.examples
        try:
            needed = Sequence.of(copied(prospect.network).double(), prospect.task).needed
        except CannotAttack as error:
            return Feasibility("red", what, counts, 1, error.reason)
        if missing := [name for name in needed if name not in prospect.sent]:
            return Feasibility("red", what, counts, 1, f"{missing[0]!r} is not sent")
        return prospect.judge(what, counts, 1)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The image that solves all layers, or the likeliest one where none does."""
        solution = _invert(observation, task, rng, job)
        if solution.certified or solution.blank:
            return solution
        level = picture_support(observation, task, solution.guess.to("cpu"))
        return replace(solution, confidence=(level,))


def _invert(observation: Observation, task: Task, rng: torch.Generator, job: Job) -> Reconstruction:
    count = observation.knowledge.num_examples
    if count != 1:
        raise CannotAttack(
            f"it inverts the gradient of one image, and this is the mean of {count}",
            "Choose another attack; one image an update is federation.batch_size = 1.",
        )
    model = replay(observation, task, job.device, torch.float64)
    sequence = Sequence.of(model.network, task)
    received, scaled = gradient_or_multiple(observation)
    gradient = {k: v.to(job.device) for k, v in received.items()}
    if absent := [name for name in sequence.needed if name not in gradient]:
        check_plain(model.network, absent[0].rpartition(".")[0])
        raise CannotAttack(
            f"the client did not send {absent[0]!r}, and each layer is inverted by its own "
            "gradient",
            "Choose 'spear', which reads a first linear layer alone, or an attack that searches.",
        )
    if not all(value.isfinite().all() for value in gradient.values()) or not any(
        value.any() for value in gradient.values()
    ):
        raise CannotAttack(
            "the equations have no finite solution: its update is zero or not finite",
            "Choose an attack that searches.",
        )
    masked = sequence.first is not None and sequence.shown(gradient).masked
    values = sequence.solve(model, gradient).view(1, *task.spec.input_shape).float()
    image = values if bool(values.isfinite().all()) else None
    near = values.where(values.isfinite(), 0.5)
    target = single_target(model.network, task, gradient, sequence.head, near)
    solved: Solved | None = None
    if image is not None:
        batch = Batch(image, target.target.to(image.device))
        first = [f"{layer.name}.weight" for layer in sequence.layers[:1]]
        double = replace(batch, inputs=image.double())
        proof = prove(observation, task, double, [first] if first else [])
        solved = Solved(image, target, proof.error)
        if proof.holds and proof.error <= SOLVED_IMAGE:
            scale = scale_note(target.factor) if scaled else ""
            notes = (scale, target_note(target), range_note(image, task))
            return Reconstruction(
                batch,
                objective=proof.error,
                steps=max(1, len(sequence.layers)),
                confidence=(certificate(proof),),
                note="; ".join(filter(None, notes)),
            )
        if sequence.first is not None:
            weight = gradient[sequence.first.weight]
            state = {"rounded": proof.holds, "masked": masked}
            better = shown(observation, task, batch, weight, proof.error, **state)
            if better is not None:
                scale = scale_note(target.trusted) if scaled and proof.error < EXPLAINED else ""
                return replace(better, note="; ".join(filter(None, (better.note, scale))))
        if smoothed := smoothing_note(observation, task, batch):
            return Reconstruction(
                batch, objective=proof.error, confidence=("guess",), note=smoothed
            )
    if sequence.head.bias not in gradient:
        if solved is None or solved.error >= EXPLAINED:
            raise CannotAttack(
                "no image explains the update, and what noise leaves of one is estimated beside "
                "the head's bias, which is not there",
                "Choose an attack that searches.",
            )
        return Reconstruction(
            Batch(solved.image, solved.target.target),
            objective=solved.error,
            confidence=("guess",),
        )
    length = step_length(observation) if scaled else 1.0
    seen = Received(gradient, length, sequence.head, target)
    guess = _estimated(estimate(observation, task, seen, rng, job), solved, gradient)
    if masked:
        return _in_part(guess, values)
    if scaled and not guess.note:
        guess = replace(guess, note=scale_note(target.trusted))
    if guess.note or sequence.first is None:
        return guess
    weight = gradient[sequence.first.weight]
    exact = not weight.all()  # noise leaves no zeros
    cause = departure(observation, task, guess.guess.to("cpu"), exact=exact)
    return replace(guess, note=cause or several_note(weight))


@dataclass(frozen=True, slots=True)
class Solved:
    """The image that solves all layers, and the relative error of its gradient."""

    image: Tensor
    target: SingleTarget
    error: float


def _estimated(
    estimated: ImageEstimate, solved: Solved | None, gradient: Tensors
) -> Reconstruction:
    """The likeliest of the estimate and the layers' solution, or the prior's mean."""
    best, model = estimated.posterior, estimated.estimator
    image, target, note = best.image.clamp(0, 1), best.target, ""
    explained = solved is not None and solved.error < EXPLAINED
    blank = not estimated.informed and not explained
    if blank:
        image = estimated.prior.mean
        note = (
            "beside what no image explains, the update tells next to nothing: the prior's mean is "
            "guessed."
        )
    elif solved is not None:
        label = solved.target.target.to(image.device)
        tried = [(model.score(best.image, best.target, best.scale), image, target)]
        for other in (solved.image[0].to(image), solved.image[0].to(image).clamp(0, 1)):
            tried.append((model.score(other, label, 1.0), other, label))
        _, image, target = min(tried, key=lambda candidate: candidate[0])
    guess = Batch(image[None].float(), target)
    again = model.exact.gradient(Batch(guess.inputs.double(), guess.labels))
    # Where noise hides the factor of the loss, the objective is the error at the best one.
    factors = (estimated.received.single.trusted, fitted_factor(again, gradient))
    errors = [relative_error({k: c * v for k, v in again.items()}, gradient) for c in factors]
    return Reconstruction(
        guess,
        objective=min(errors),
        steps=best.steps,
        confidence=("guess",),
        blank=blank,
        note=note,
    )


def _in_part(guess: Reconstruction, values: Tensor) -> Reconstruction:
    """The pixels that single entries of the first layer show, and a guess of the others."""
    exact = values.isfinite()
    image = values.cpu().where(exact.cpu(), guess.guess.inputs.cpu())
    note = (
        f"{int(exact.sum())} of {exact.numel()} values are exact: entries of the first layer that "
        "were sent show each of them; the others were not sent, and are guessed"
    )
    batch = replace(guess.guess, inputs=image.to(guess.guess.inputs))
    return replace(guess, guess=batch, note=note, blank=False)
