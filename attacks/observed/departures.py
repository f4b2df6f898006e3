"""Why a guess that one layer shows does not make the rest of an update: causes told by a test."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.base import Reconstruction
from attacks.observed.causes import APART, EXACT, ROUGH, Pair, fit, is_even, masked, unlike
from attacks.observed.labels import find_head
from attacks.observed.replay import gradient_or_multiple, replay
from attacks.observed.single_target import fitted_factor, relative_error
from attacks.observed.smoothed_labels import smoothing_note
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

OPEN = (
    "the first layer shows this input alone, and it does not make the other layers' part of the "
    "update: the loss, its targets, a mask of weights or units, or the optimizer is another than "
    "is taken, and no test tells which"
)
"""Where none of the causes passes its test."""
_LIT = 0.02
"""Part of a tensor's first direction that a fitted brightness may leave. Of the first four
singular vectors of 32 clients of Muon, on all matrices or the head's, the image's leaves .004 to
.02, and any other .69 and more. The tests of causes pass at twice of it; half of it leaves clients
of Muon without a cause."""
_SINGLE = 1e-4
"""Second singular value of a layer's gradient, as a share of the first, up to which it is that of a
single input; float32 weights leave 1e-6, and rounding to eight bits 1e-2."""
_FALL = 0.1
"""The same of the next one, as a share of the last that is of an input."""
_SIGNS = 0.05
"""Distance of the quartiles of the sizes of a gradient's entries, as a share of the upper, below
which they are signs or steps of Adam, some of which are small: of 32 clients by AdamW it is 1e-5,
by SGD .68 and more."""
EXPLAINED = 0.1
"""Relative error of a solution's gradient below which the update is not said to tell nothing;
halved and doubled, no test changes."""


def departure(observation: Observation, task: Task, guess: Batch, *, exact: bool = False) -> str:
    """The first cause that passes its test, in words; empty where none does.

    Args:
        observation: of a client whose update the guess does not make.
        task: as described to the attacker.
        guess: of one example, or of several for smoothed labels.
        exact: ask for causes alone that noise does not have.
    """
    if said := smoothing_note(observation, task, guess):
        return said
    pair = _compared(observation, task, guess)
    if pair is None:
        return ""
    if (said := _first(EXACT, pair)) or exact:
        return said
    shown = lit(observation, task, guess.inputs, guess.labels)
    if shown is not None and (shown.inputs - guess.inputs).norm() > APART * guess.inputs.norm():
        return ""
    return _first(ROUGH, pair)


def sent_error(observation: Observation, task: Task, guess: Batch) -> float | None:
    """Relative error of the entries that were sent; None where a mask left none out."""
    pair = _compared(observation, task, guess)
    if pair is None or not masked(pair):
        return None
    made = {name: value * (pair.seen[name] != 0) for name, value in pair.made.items()}
    factor = fitted_factor(made, pair.seen)
    return relative_error({name: factor * value for name, value in made.items()}, pair.seen)


def shown(
    observation: Observation,
    task: Task,
    batch: Batch,
    weight: Tensor,
    error: float,
    *,
    rounded: bool = False,
    masked: bool = False,
) -> Reconstruction | None:
    """What a first linear layer shows, with the cause why it does not make the rest; None if none.

    Args:
        observation: of one client.
        task: as described.
        batch: what solves the layers.
        weight: gradient of the first layer.
        error: relative, of the gradient of ``batch``.
        rounded: whether rounding explains it.
        masked: whether the entries of ``weight`` that were sent are those of a single input.
    """
    single = masked or is_single(weight)
    if note := departure(observation, task, batch, exact=not single or rounded):
        part = sent_error(observation, task, batch.to("cpu")) if masked else None
        error = error if part is None else part
        return Reconstruction(batch, error, confidence=("guess",), note=note)
    # Steps of Muon blow other directions up, yet the input's stays the first.
    direction = torch.linalg.svd(weight, full_matrices=False).Vh[0]
    lighter = (
        None if rounded or masked else lit(observation, task, direction.cpu(), batch.labels.cpu())
    )
    if lighter and (note := departure(observation, task, lighter, exact=True)):
        return Reconstruction(lighter, confidence=("guess",), note=note)
    if not single and not rounded:
        return None
    signed = any((value < 0).any() for value in observation.update().values())
    note = _left(error, rounded=rounded) if signed and not task.doubt else ""
    return Reconstruction(batch, error, confidence=("guess",), note=note)


def _left(error: float, *, rounded: bool) -> str:
    """What is said of an update that the input of its first layer does not make."""
    if error >= EXPLAINED:
        return OPEN
    if rounded:
        return (
            f"this input makes the update but for {error:.1g} of it, which rounding explains "
            "and which would hide changes of its pixels"
        )
    return f"this input makes the update but for {error:.1g} of it, and no test tells why"


def several_note(weight: Tensor) -> str:
    """That a linear layer's gradient has the rank of several inputs; empty where it shows none."""
    sizes = torch.linalg.svdvals(weight[weight.any(1)][:, weight.any(0)])
    rank = int((sizes > _SINGLE * sizes[0]).sum())
    if rank in (1, len(sizes)) or float(sizes[rank]) > _FALL * float(sizes[rank - 1]):
        return ""
    return (
        f"the first layer's gradient has rank {rank}, as of {rank} inputs, or of one whose entries "
        f"were cut: 'spear' reads several, with num_examples={rank} or without it"
    )


def is_single(weight: Tensor) -> bool:
    """Whether a linear layer's gradient is that of a single input, and no product of signs."""
    if weight.dim() != 2 or min(weight.shape) < 2:
        return False
    first, second = torch.linalg.svdvals(weight)[:2].tolist()
    sizes = weight[weight != 0].abs().sort().values
    small, large = (float(sizes[int(share * (len(sizes) - 1))]) for share in (0.25, 0.75))
    return second < _SINGLE * first and large - small > _SIGNS * large


def _is_linear(task: Task) -> bool:
    """Whether a multiple of an input is a multiple of what the owner's network takes."""
    spec = task.spec
    return set(spec.low) == {0.0} and len(set(spec.high)) == 1


def _first(causes: Sequence[Callable[[Pair], str]], pair: Pair) -> str:
    return next(filter(None, (cause(pair) for cause in causes)), "")


def lit(observation: Observation, task: Task, direction: Tensor, labels: Tensor) -> Batch | None:
    """The image along a direction whose brightness makes every tensor up to a factor of its own.

    None where none does. A linear layer's update has an example's direction whatever the optimizer
    makes of its size; of matrices the directions alone are compared, see ``_turned``.

    Args:
        observation: of one example.
        task: of images.
        direction: of the pixels, of either sign.
        labels: its class, as the loss takes it.
    """
    flat = direction.flatten()
    flat = flat / flat[flat.abs().argmax()]
    shape = (1, *task.spec.input_shape)
    pair = _compared(observation, task, Batch(flat.reshape(shape), labels))
    if pair is None or not _is_linear(task):
        return None

    def error(size: float) -> float:
        batch = replace(pair.batch, inputs=size * flat.reshape(shape).double())
        made = pair.model.gradient(batch)
        return max(_turned(value, made[name].detach()) for name, value in pair.seen.items())

    tried = [2 ** (step / 16) for step in range(-64, 33)]
    best = min(tried, key=error)
    for width in (2 ** (1 / 64), 2 ** (1 / 512), 2 ** (1 / 4096)):
        best = min((best * width**step for step in range(-8, 9)), key=error)
    if error(best) > _LIT:
        return None
    return Batch((best * flat).reshape(shape).float(), labels)


def _turned(seen: Tensor, made: Tensor) -> float:
    """How far ``seen`` turns what it does not only scale, of a matrix the pair that makes ``made``.

    A matrix of one example is ``u v^T``; whatever an optimizer makes of its singular values, ``u``
    and ``v`` stay a pair.
    """
    if made.dim() != 2 or min(made.shape) < 2 or is_even(seen):
        return unlike(seen, made)
    right = made[made.norm(dim=1).argmax()]
    left = made @ right
    right, left = normalize(right, dim=0), normalize(left, dim=0)
    ahead, back = seen @ right, seen.T @ left
    return max(fit(ahead, left)[1], fit(back, right)[1])


def _compared(observation: Observation, task: Task, guess: Batch) -> Pair | None:
    """What was observed beside what a guess of one image makes; None where that is not defined."""
    if task.doubt or task.modality != "image" or len(guess) != 1:
        return None
    try:
        seen, _ = gradient_or_multiple(observation)
        model = replay(observation, task, torch.device("cpu"), torch.float64)
    except CannotAttack:
        return None
    batch = replace(guess, inputs=guess.inputs.double())
    made = {name: value.detach() for name, value in model.gradient(batch).items()}
    seen = {name: seen[name] for name in made if seen[name].any() or made[name].any()}
    if not seen or not all(value.isfinite().all() for value in seen.values()):
        return None
    if not any((value < 0).any() for value in seen.values()):
        return None  # absolute values, which no input makes
    try:
        head = find_head(model.network)
    except CannotAttack:
        head = None
    return Pair(seen, {name: made[name] for name in seen}, model, batch, head)
