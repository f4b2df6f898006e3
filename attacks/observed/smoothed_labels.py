"""Labels that a client smoothed, by the slopes of a guess at the outputs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.observed.calls import noted
from attacks.observed.labels import find_head
from attacks.observed.readings import on_grid
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.targets import output_slopes
from fedsim.types import Batch

_UNEXPLAINED = 1e-3
"""Part of the slopes that may be left unexplained: right guesses leave 1e-7 of a gradient, others
8e-3 and more. Half and double of it judge the tests alike."""
_PLAIN = 1e-5
"""What float32 leaves of the slopes of a plain cross-entropy."""
_LEAST = 0.005
"""Share of a label below which it counts as not smoothed."""
_ABOVE_NOISE = 10
"""Standard errors, by what of the head's gradient is no slope times an input, above which a share
is no noise. Of 240 noised updates of hard labels none is called smoothed (without it 14), and of 90
of smoothed labels all are; half and double of it judge them alike."""
_FEWEST = 3  # of two, each guess has labels and a smoothing that fit
_EQUATIONS = 3  # for two unknowns, so that one is left to tell by


def smoothing_note(observation: Observation, task: Task, guess: Batch) -> str:
    """That the client smoothed its labels, where the guess's slopes show it; else empty.

    With the inputs ``h_i`` of the head, which the guess determines, its gradient
    ``sum_i s_i h_i^T`` gives the slopes ``s_i``, and labels smoothed by ``e`` leave
    ``k s_i = p_i - (1 - e) y_i - e / K`` of the softmax ``p_i`` over ``K`` classes.
    """
    slopes = _slopes(observation, task, guess)
    if slopes is None or on_grid(observation.update()):
        return ""  # a grid's rounding looks like a little smoothing
    reached, softmax, plain, noise = slopes
    count, classes = reached.shape
    if classes < _FEWEST or count * (classes - 1) < _EQUATIONS:
        return ""
    label = one_hot(reached.argmin(1), classes)
    goal = (softmax - label).flatten()
    if (plain(reached.argmin(1)).flatten() - goal / count).norm() > _PLAIN * goal.norm():
        return ""  # the loss is no plain cross-entropy itself
    system = torch.stack((reached.flatten(), (1 / classes - label).flatten()), 1)
    scale, share = torch.linalg.lstsq(system, goal[:, None]).solution[:, 0].tolist()
    error = (system @ system.new_tensor([scale, share]) - goal).norm() / goal.norm()
    if error > _UNEXPLAINED or not scale > 0 or not _LEAST < share < 1:
        return ""
    noise *= _ABOVE_NOISE * scale
    if share < noise * float(torch.linalg.pinv(system)[1].norm()):
        return ""
    if error * goal.norm() > noise * goal.numel() ** 0.5 + _PLAIN * goal.norm():
        return ""  # another term of the loss, such as a penalty of the outputs
    return (
        f"the client's labels are smoothed by {share:.2g}, which hides a proof: pass a loss that "
        f"smooths them as well (label_smoothing={share:.2g})"
    )


def _slopes(
    observation: Observation, task: Task, guess: Batch
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor], float] | None:
    """Slopes and softmax ``(example, class)`` at the head, and the loss's slopes by class.

    With the standard deviation of a slope by noise in the gradient. None where they cannot be told.
    """
    if task.spec.target != "class" or not task.spec.num_classes or not len(guess):
        return None
    network = task.model(observation.sent)
    try:
        head = find_head(network)
    except CannotAttack:
        return None
    if head.weight not in observation.received:
        return None
    batch = Batch(guess.inputs, torch.zeros(len(guess), dtype=torch.int64), guess.mask)
    with torch.no_grad(), noted({head.layer: network.get_submodule(head.layer)}) as calls:
        task.loss(network, batch)
    features, outputs = calls[-1].input.double(), calls[-1].output.double()
    if features.shape[:-1] != (len(guess),) or outputs.shape[-1] != task.spec.num_classes:
        return None
    update = observation.update((head.weight, head.bias))
    gradient = update[head.weight].double()
    if head.bias in update:
        features = torch.cat([features, features.new_ones(len(guess), 1)], 1)
        gradient = torch.cat([gradient, update[head.bias].double()[:, None]], 1)

    def plain(labels: Tensor) -> Tensor:
        given = Batch(guess.inputs, labels, guess.mask)
        single = outputs.to(calls[-1].output)
        return output_slopes(task.loss, network, head.layer, single, given).double()

    inverse = torch.linalg.pinv(features)
    reached = (gradient @ inverse).T
    freedom = gradient.numel() - reached.numel()
    rest = (gradient - reached.T @ features).norm() / max(freedom, 1) ** 0.5
    noise = float(rest * inverse.square().mean(1).sum().sqrt()) if freedom else float("inf")
    return reached, outputs.softmax(1), plain, noise
