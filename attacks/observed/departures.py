"""Why a guess that one layer shows does not make the rest of an update: causes told by a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from attacks.observed.labels import Head, find_head
from attacks.observed.replay import Replay, gradient_or_multiple, replay
from attacks.observed.single_target import fitted_factor, relative_error
from attacks.observed.smoothed_labels import smoothing_note
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

OPEN = (
    "the first layer shows this input alone, and it does not make the other layers' part of the "
    "update: the loss, its targets, a mask of weights or units, or the optimizer is another than "
    "is taken, and no test tells which"
)
"""Where none of the causes passes its test."""
_ALIKE = 1e-3
"""Relative error up to which a guess makes a tensor, times a factor. At half and twice of it the
tests of causes pass, 12 causes by 4 networks with 3 clients each."""
_OTHER = 0.05
"""Relative distance of factors that rounding does not explain, and of a target from 0 or 1."""
_CROSSED = 0.1
"""Largest entry between what a gradient spans and what it does not, as a share of the entries of
the latter, in a matrix whose orthogonalisation blew up the rounding of what was not there."""
_RANK = 1e-5
"""Singular value of a gradient, as a share of the largest, that is rounding."""
_LIT = 0.02
"""Part of a tensor's first direction that a fitted brightness may leave. Of the first four
singular vectors of 32 clients of Muon, on all matrices or the head's, the image's leaves .004 to
.02, and any other .69 and more. The tests of causes pass at twice of it; half of it leaves clients
of Muon without a cause."""
_SPREAD = 1.5
"""Ratio of the mean squares that tensors of noise of one size may have: beside a large tensor, .6 %
of those of 100 entries exceed it, and 5 % of 48. With the true image, 12 clients with noise have
1.44 at most. Of the other causes Muon has 1.46 and more, and is asked for before, the rest 2.6 and
more. Half and twice of what lies above 1 pass the tests of causes."""
_EVEN = 0.01
"""Relative spread of steps of one size, as of biases by Adam beside matrices by Muon; decay leaves
.001."""
_FEWEST = 40  # entries of a tensor whose mean square is compared


@dataclass(frozen=True)
class _Pair:
    """What was observed, and what a guess makes, tensor by tensor.

    Attributes:
        seen: the gradient, or a multiple of it.
        made: by the guess.
        model: as broadcast, in float64.
        batch: the guess.
        head: the last linear layer; None where it cannot be told.
    """

    seen: Tensors
    made: Tensors
    model: Replay
    batch: Batch
    head: Head | None


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
    if (said := _first(_EXACT, pair)) or exact:
        return said
    shown = lit(observation, task, guess.inputs, guess.labels)
    if shown is not None and (shown.inputs - guess.inputs).norm() > _OTHER * guess.inputs.norm():
        return ""
    return _first(_ROUGH, pair)


def sent_error(observation: Observation, task: Task, guess: Batch) -> float | None:
    """Relative error of the entries that were sent; None where a mask left none out."""
    pair = _compared(observation, task, guess)
    if pair is None or not _masked(pair):
        return None
    made = {name: value * (pair.seen[name] != 0) for name, value in pair.made.items()}
    factor = fitted_factor(made, pair.seen)
    return relative_error({name: factor * value for name, value in made.items()}, pair.seen)


def _is_linear(task: Task) -> bool:
    """Whether a multiple of an input is a multiple of what the owner's network takes."""
    spec = task.spec
    return set(spec.low) == {0.0} and len(set(spec.high)) == 1


def _first(causes: Sequence[Callable[[_Pair], str]], pair: _Pair) -> str:
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
    if made.dim() != 2 or min(made.shape) < 2 or _is_even(seen):
        return _unlike(seen, made)
    right = made[made.norm(dim=1).argmax()]
    left = made @ right
    right, left = normalize(right, dim=0), normalize(left, dim=0)
    ahead, back = seen @ right, seen.T @ left
    return max(_fit(ahead, left)[1], _fit(back, right)[1])


def _compared(observation: Observation, task: Task, guess: Batch) -> _Pair | None:
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
    return _Pair(seen, {name: made[name] for name in seen}, model, batch, head)


def _rates(pair: _Pair) -> str:
    """Every tensor is what the guess makes, times a factor of its own."""
    fits = [_fit(value, pair.made[name]) for name, value in pair.seen.items()]
    factors = [factor for factor, _ in fits]
    if max(error for _, error in fits) > _ALIKE or min(factors) <= 0:
        return ""
    if max(factors) <= (1 + _OTHER) * min(factors):
        return ""
    return (
        "each tensor is what this input makes, times a factor of its own, as by a learning rate "
        "for each layer, LARS or trust ratios, so that no proof of the whole is possible"
    )


def _orthogonalised(pair: _Pair) -> str:
    """Matrices keep what their gradient spans, and the rounding of the rest was blown up."""
    names = [name for name, value in pair.seen.items() if min(value.shape, default=0) > 1]
    matrices = [name for name in names if pair.seen[name].dim() == 2]
    changed = [n for n in matrices if _is_orthogonalised(pair.seen[n], pair.made[n])]
    others = [n for n in pair.seen if n not in changed]
    if not changed or any(_unlike(pair.seen[n], pair.made[n]) > 0.5 for n in others):
        return ""
    return (
        f"the update of {changed[0]!r} is orthogonalised, as by Muon: it keeps the row space of "
        "the gradient and not its size, which hides a proof"
    )


def _is_orthogonalised(seen: Tensor, made: Tensor) -> bool:
    left, sizes, right = torch.linalg.svd(made, full_matrices=True)
    rank = int((sizes > _RANK * sizes[0]).sum())
    if not 0 < rank < min(seen.shape):
        return False
    turned = left.T @ seen @ right.T
    kept, rest = turned[:rank, :rank], turned[rank:, rank:]
    crossed = max(float(turned[:rank, rank:].abs().max()), float(turned[rank:, :rank].abs().max()))
    blown = float(torch.linalg.matrix_norm(rest, 2))
    diagonal = kept.diagonal()
    even = float(diagonal.min()) > 0.5 * float(diagonal.max()) > 0
    return even and blown > _CROSSED * float(diagonal.max()) and crossed < _CROSSED * blown


def _transposed(pair: _Pair) -> str:
    """A square matrix came with its axes exchanged."""
    for name, value in pair.seen.items():
        square = value.dim() == 2 and value.shape[0] == value.shape[1]
        if square and _fit(value.T, pair.made[name])[1] <= _ALIKE < _fit(value, pair.made[name])[1]:
            return (
                f"the update of {name!r} is the transposed one of what this input makes, as Keras "
                "and JAX store a matrix: turn it round"
            )
    return ""


def _mixed(pair: _Pair) -> str:
    """Two classes share the target: the slopes of all others are their softmax alone."""
    head, task = pair.head, pair.model.task
    if head is None or task.spec.target != "class" or head.bias not in pair.seen:
        return ""
    slope, made = pair.seen[str(head.bias)], pair.made[str(head.bias)]
    classes = len(slope)
    if classes != task.spec.num_classes or classes < 5:
        return ""
    softmax = made + one_hot(pair.batch.labels, classes)[0]
    factor = float((slope / softmax).median())
    target = softmax - slope / factor if factor > 0 else softmax
    high, other, *rest = target.sort(descending=True).values.tolist()
    if max(map(abs, rest)) > _ALIKE or not _OTHER < other < high < 1 - _OTHER:
        return ""
    soft = replace(pair.batch, labels=target.clamp(min=0)[None])
    again = {k: v.detach() for k, v in pair.model.gradient(soft).items() if k in pair.seen}
    scale = fitted_factor(again, pair.seen)
    if relative_error({k: scale * v for k, v in again.items()}, pair.seen) > _ALIKE:
        return ""
    first, second = target.argsort(descending=True)[:2].tolist()
    return (
        f"its labels are mixed, {high:.0%} of class {first} and {other:.0%} of class {second}: "
        "a loss that mixes them as well proves it"
    )


def _masked(pair: _Pair) -> str:
    """Every entry that is not zero is what this input makes, and many are zero that should not."""
    silent = 0.0
    for name, value in pair.seen.items():
        sent = value != 0
        made = pair.made[name]
        if not sent.any() or _fit(value[sent], made[sent])[1] > _ALIKE:
            return ""
        drives = made.abs() > _OTHER * made.abs().max()
        silent = max(silent, float((drives & ~sent).sum() / drives.sum().clamp(min=1)))
    if silent < _OTHER:
        return ""
    return (
        f"{silent:.0%} of the entries of a tensor that this input makes were not sent, as under "
        "pruning or the mask of a sparse federation; those that were are what it makes"
    )


def _dropped(pair: _Pair) -> str:
    """The rows of one layer and the columns of the next are zero for the same driven units."""
    matrices = [name for name, value in pair.seen.items() if value.dim() == 2]
    for name, after in pairwise(matrices):
        rows, columns = pair.seen[name], pair.seen[after]
        made = pair.made[after].abs().amax(0)
        if rows.shape[0] != columns.shape[1]:
            continue
        driven = made > _OTHER * made.max()
        silent = driven & ~columns.any(0)
        if silent.any() and bool((driven & ~silent).any()) and not rows[silent].any():
            return (
                f"{int(silent.sum())} of {int(driven.sum())} units of {name!r} that this input "
                "drives have no update, as under dropout, a mask of units, or where the input is "
                "brighter or darker than its layer shows, which hides a proof"
            )
    return ""


def _noise(pair: _Pair) -> str:
    """What is left has one size in every tensor, whatever the tensor's own is."""
    factor = fitted_factor(pair.made, pair.seen)
    rest = [value - factor * pair.made[name] for name, value in pair.seen.items()]
    squares = [float(value.square().mean()) for value in rest if value.numel() >= _FEWEST]
    sizes = [float(v.square().mean()) for v in pair.seen.values() if v.numel() >= _FEWEST]
    uneven = max(sizes, default=0) > _SPREAD**2 * min(sizes, default=0)
    if len(squares) < 2 or not uneven or max(squares) > _SPREAD * min(squares):
        return ""
    deviation = (sum(squares) / len(squares)) ** 0.5
    return (
        f"what it leaves of the update is noise of one size in every tensor, {deviation:.2g} an "
        "entry, which hides a proof"
    )


_EXACT: tuple[Callable[[_Pair], str], ...] = (_rates, _transposed, _mixed, _masked, _orthogonalised)
_ROUGH: tuple[Callable[[_Pair], str], ...] = (_dropped, _noise)
"""Causes that an input of another brightness would seem to have as well."""


def _unlike(seen: Tensor, made: Tensor) -> float:
    """Relative error of what is made up to a factor; of steps of one size, of their signs."""
    if _is_even(seen):
        return float(((seen.sign() != made.sign()) & (made != 0)).double().mean())
    return _fit(seen, made)[1]


def _is_even(seen: Tensor) -> bool:
    """Whether all entries that are not next to 0 are of one size."""
    sizes = seen[seen.abs() > _EVEN * seen.abs().max()].abs()
    return len(sizes) > 1 and float(sizes.max() - sizes.min()) < _EVEN * float(sizes.max())


def _fit(seen: Tensor, made: Tensor) -> tuple[float, float]:
    """The factor of ``made`` that is nearest to ``seen``, and the relative error of it."""
    square, whole = float(made.square().sum()), float(seen.square().sum())
    if not square or not whole:
        return 0.0, 1.0
    factor = float((seen * made).sum()) / square
    return factor, float((seen - factor * made).norm()) / whole**0.5
