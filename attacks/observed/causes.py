"""Causes why a guess does not make the rest of an update, each with its test."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.observed.calls import noted
from attacks.observed.labels import Head
from attacks.observed.replay import Replay
from attacks.observed.single_target import fitted_factor, relative_error
from fedsim.types import Batch, Tensors

_ALIKE = 1e-3
"""Relative error up to which a guess makes a tensor, times a factor. At half and twice of it the
tests of causes pass, 12 causes by 4 networks with 3 clients each."""
APART = 0.05
"""Relative distance of factors that rounding does not explain, and of a target from 0 or 1."""
_CROSSED = 0.1
"""Largest entry between what a gradient spans and what it does not, as a share of the entries of
the latter, in a matrix whose orthogonalisation blew up the rounding of what was not there."""
_RANK = 1e-5
"""Singular value of a gradient, as a share of the largest, that is rounding."""
_SPREAD = 1.5
"""Ratio of the mean squares that tensors of noise of one size may have: beside a large tensor, .6 %
of those of 100 entries exceed it, and 5 % of 48. With the true image, 12 clients with noise have
1.44 at most. Of the other causes Muon has 1.46 and more, and is asked for before, the rest 2.6 and
more. Half and twice of what lies above 1 pass the tests of causes."""
_EVEN = 0.01
"""Relative spread of steps of one size, as of biases by Adam beside matrices by Muon; decay leaves
.001."""
_ROUNDED = 2.0**-23
"""Rounding of a probability next to 1 in float32, which is the slope of its class by so much."""
_FEWEST = 40  # entries of a tensor whose mean square is compared


@dataclass(frozen=True)
class Pair:
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


def _misfit(pair: Pair) -> float:
    """Relative error of what the guess makes, at the best factor."""
    factor = fitted_factor(pair.made, pair.seen)
    return relative_error({name: factor * v for name, v in pair.made.items()}, pair.seen)


def _rates(pair: Pair) -> str:
    """Every tensor is what the guess makes, times a factor of its own."""
    fits = [fit(value, pair.made[name]) for name, value in pair.seen.items()]
    factors = [factor for factor, _ in fits]
    if max(error for _, error in fits) > _ALIKE or min(factors) <= 0:
        return ""
    if max(factors) <= (1 + APART) * min(factors):
        return ""
    return (
        "each tensor is what this input makes, times a factor of its own, as by a learning rate "
        "for each layer, LARS or trust ratios, so that no proof of the whole is possible"
    )


def _centralised(pair: Pair) -> str:
    """What each row of each matrix adds up to was taken out."""
    matrices = [value.flatten(1) for value in pair.seen.values() if value.dim() > 1]
    sums = [float(v.sum(1).abs().max() / v.abs().sum(1).max()) for v in matrices]
    if len(sums) < 2 or max(sums) > _ALIKE:
        return ""
    return (
        "the rows of each matrix of the update add up to 0, as after gradient centralisation: the "
        "input's mean is lost, which hides a proof"
    )


def _saturated(pair: Pair) -> str:
    """The slopes of the classes are next to the rounding of a softmax in float32."""
    bias = str(pair.head.bias) if pair.head else ""
    if pair.model.task.spec.target != "class" or len(pair.made.get(bias, ())) < 2:
        return ""
    softmax = pair.made[bias] + one_hot(pair.batch.labels, len(pair.made[bias]))[0]
    likeliest = int(softmax.argmax())
    rest = float(softmax.sum() - softmax[likeliest])
    if _misfit(pair) * rest > _ROUNDED or pair.seen[bias][likeliest] > 0:
        return ""
    return (
        f"the client's loss is next to 0 at this input, as its class has a probability of 1 less "
        f"{rest:.0e}: rounding decides what the other layers received"
    )


def _orthogonalised(pair: Pair) -> str:
    """Matrices keep what their gradient spans, and the rounding of the rest was blown up."""
    names = [name for name, value in pair.seen.items() if min(value.shape, default=0) > 1]
    matrices = [name for name in names if pair.seen[name].dim() == 2]
    changed = [n for n in matrices if _is_orthogonalised(pair.seen[n], pair.made[n])]
    others = [n for n in pair.seen if n not in changed]
    if not changed or any(unlike(pair.seen[n], pair.made[n]) > 0.5 for n in others):
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


def _transposed(pair: Pair) -> str:
    """A square matrix came with its axes exchanged."""
    for name, value in pair.seen.items():
        square = value.dim() == 2 and value.shape[0] == value.shape[1]
        if square and fit(value.T, pair.made[name])[1] <= _ALIKE < fit(value, pair.made[name])[1]:
            return (
                f"the update of {name!r} is the transposed one of what this input makes, as Keras "
                "and JAX store a matrix: turn it round"
            )
    return ""


def _sloped(pair: Pair) -> str:
    """With the slopes at the outputs as they came, which are no class's, it makes every tensor."""
    head, model = pair.head, pair.model
    if head is None or head.bias not in pair.seen:
        return ""
    with noted({head.layer: model.network.get_submodule(head.layer)}) as calls:
        model.task.loss(model.network, pair.batch)
    slopes = pair.seen[str(head.bias)]
    if len(calls) != 1 or calls[0].output.numel() != len(slopes):
        return ""
    outputs, parameters = calls[0].output, [model.parameters[name] for name in pair.seen]
    made = torch.autograd.grad(
        outputs, parameters, slopes.view_as(outputs), allow_unused=True, materialize_grads=True
    )
    error = relative_error(dict(zip(pair.seen, made, strict=True)), pair.seen)
    if error > _ALIKE or error > APART * _misfit(pair):
        return ""
    return _mixed(outputs.detach().flatten().softmax(0), slopes) or (
        "its slopes at the outputs are none that the loss has for one class, as with soft targets "
        "or another loss; with them, this input makes the whole update"
    )


def _mixed(softmax: Tensor, slopes: Tensor) -> str:
    """Two classes share the target: the slopes of all others are their softmax alone."""
    factor = float((slopes / softmax).median())
    if len(slopes) < 5 or factor <= 0:
        return ""
    shares, classes = (softmax - slopes / factor).sort(descending=True)
    high, other, *rest = shares.tolist()
    if max(map(abs, rest)) > _ALIKE or not APART < other < high < 1 - APART:
        return ""
    first, second = classes[:2].tolist()
    return (
        f"its labels are mixed, {high:.0%} of class {first} and {other:.0%} of class {second}: "
        "a loss that mixes them as well proves it"
    )


def masked(pair: Pair) -> str:
    """Every entry that is not zero is what this input makes, and many are zero that should not."""
    silent = 0.0
    for name, value in pair.seen.items():
        sent = value != 0
        made = pair.made[name]
        if not sent.any():
            continue
        if fit(value[sent], made[sent])[1] > _ALIKE:
            return ""
        drives = made.abs() > APART * made.abs().max()
        silent = max(silent, float((drives & ~sent).sum() / drives.sum().clamp(min=1)))
    if silent < APART:
        return ""
    return (
        f"{silent:.0%} of the entries of a tensor that this input makes were not sent, as under "
        "pruning or the mask of a sparse federation; those that were are what it makes"
    )


def _dropped(pair: Pair) -> str:
    """The rows of one layer and the columns of the next are zero for the same driven units."""
    matrices = [name for name, value in pair.seen.items() if value.dim() == 2]
    for name, after in pairwise(matrices):
        rows, columns = pair.seen[name], pair.seen[after]
        made = pair.made[after].abs().amax(0)
        if rows.shape[0] != columns.shape[1]:
            continue
        driven = made > APART * made.max()
        silent = driven & ~columns.any(0)
        if silent.any() and bool((driven & ~silent).any()) and not rows[silent].any():
            return (
                f"{int(silent.sum())} of {int(driven.sum())} units of {name!r} that this input "
                "drives have no update, as under dropout, a mask of units, or where the input is "
                "brighter or darker than its layer shows, which hides a proof"
            )
    return ""


def _noise(pair: Pair) -> str:
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


EXACT: tuple[Callable[[Pair], str], ...] = (
    _saturated,
    _rates,
    _centralised,
    _transposed,
    _sloped,
    masked,
    _orthogonalised,
)
ROUGH: tuple[Callable[[Pair], str], ...] = (_dropped, _noise)
"""Causes that an input of another brightness would seem to have as well."""


def unlike(seen: Tensor, made: Tensor) -> float:
    """Relative error of what is made up to a factor; of steps of one size, of their signs."""
    if is_even(seen):
        return float(((seen.sign() != made.sign()) & (made != 0)).double().mean())
    return fit(seen, made)[1]


def is_even(seen: Tensor) -> bool:
    """Whether all entries that are not next to 0 are of one size."""
    sizes = seen[seen.abs() > _EVEN * seen.abs().max()].abs()
    return len(sizes) > 1 and float(sizes.max() - sizes.min()) < _EVEN * float(sizes.max())


def fit(seen: Tensor, made: Tensor) -> tuple[float, float]:
    """The factor of ``made`` that is nearest to ``seen``, and the relative error of it."""
    square, whole = float(made.square().sum()), float(seen.square().sum())
    if not square or not whole:
        return 0.0, 1.0
    factor = float((seen * made).sum()) / square
    return factor, float((seen - factor * made).norm()) / whole**0.5
