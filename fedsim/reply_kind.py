"""What a client of another application replies with, told from the numbers themselves."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedsim.store.capture import Kind

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Pairs: TypeAlias = Sequence[tuple[Array, Array]]

_COSINE, _RATIO = 0.3, 0.1
"""Trained weights keep a cosine with those sent of more than this, unless training moved them by
three times their norm, and more than this of their norm. Gradients and differences have a cosine
near 0, and weight decay alone a small norm. Half and double of either judge the tests alike."""
_SMALL = 0.25
"""Entries below this share of their weight tell whether they are differences of two weights, since
the sum is then exact. Half and double of it judge the tests alike."""
_FEWEST, _ON_GRID, _ODD = 32, 0.99, 0.1
"""So many such entries are needed; this share of them must be whole multiples of the last digit of
their weight, and this share odd ones. Of differences half are odd, of halves of them nearly none;
of gradients few are whole. Half and double of each judge the tests alike, but for ``_ON_GRID``."""
_LOOKED_AT = 2**22
_TELLING = 3
"""Classes that a head needs: of two, one always rises and the other falls."""
_ZERO_SUM = 0.01
"""The gradients of a head's biases sum to 0 under the cross-entropy, up to rounding to float16."""
_FEW = 1 / 8
"""Share of the classes, and one at least, that a batch of unknown size may have to tell the sign:
where most are in it, the absent ones look like those of a small batch of the other sign."""


def kind_of(sent: Arrays, received: Arrays) -> Kind:
    """Tell weights, their differences and gradients apart.

    Weights point where those that were sent do. Differences of two arrays of weights are multiples
    of their last digits, and show their sign where the sum would need a digit that its format
    lacks. What remains is a gradient, unless the head's biases rise at the few classes of a batch:
    then it is a difference that was scaled or rounded.
    """
    pairs = matched(sent, received)
    products = _products(pairs)
    if are_weights(*products):
        return "weights"
    if not products[1] or _are_differences(pairs):
        shown = _summable(pairs, 1) - _summable(pairs, -1) or _head_sign(received)
        return "pseudo-gradient" if shown < 0 else "difference"
    return "difference" if _head_sign(received) > 0 else "gradient"


def are_weights(start: float, reply: float, both: float) -> bool:
    """Whether a reply is of weights, in place of what is added to those sent or of a gradient.

    Args:
        start: squared norm of what was sent.
        reply: squared norm of the reply.
        both: their inner product.
    """
    if not start or not math.isfinite(start + reply + both):
        return True
    return reply > _RATIO**2 * start and both > _COSINE * (start * reply) ** 0.5


def hides_its_sign(received: Arrays) -> bool:
    """Whether what ``kind_of`` takes for a gradient may as well be a scaled difference."""
    return _head_sign(received) == 0


def ascends(gradients: Arrays, examples: int | None) -> bool:
    """Whether what is said to be a gradient has the opposite sign, as its head's biases show.

    A batch of unknown size may hold all classes of a few but one, which alone rises then.
    """
    vectors = [v for v in gradients.values() if v.ndim == 1 and v.dtype.kind == "f"]
    few = not vectors or _FEW * vectors[-1].size < 1
    return not (few and examples is None) and _head_sign(gradients, examples) > 0


def cosine(sent: Arrays, received: Arrays) -> float:
    """Cosine of a reply with what was sent; 0 if either is zero or infinite."""
    start, reply, both = _products(matched(sent, received))
    usable = start * reply > 0 and np.isfinite([start, reply, both]).all()
    return both / (start * reply) ** 0.5 if usable else 0.0


def matched(sent: Arrays, received: Arrays) -> list[tuple[Array, Array]]:
    """Pairs of floating-point arrays by name, else by order, as far as their shapes agree."""
    named = [(sent[name], value) for name, value in received.items() if name in sent]
    pairs = named or zip(_flat(sent, received), received.values(), strict=False)
    return [
        (_single(a.ravel()), b.ravel())
        for a, b in pairs
        if a.shape == b.shape and a.size and a.dtype.kind == b.dtype.kind == "f"
    ]


def _flat(sent: Arrays, received: Arrays) -> list[Array]:
    """What was sent, as a single vector if the reply is one of all weights."""
    every, reply = list(sent.values()), list(received.values())
    if len(every) == 1 or len(reply) != 1 or reply[0].ndim != 1:
        return every
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    trained = [value for name, value in sent.items() if not name.endswith(statistics)]
    for part in (every, trained):
        if sum(value.size for value in part) == reply[0].size:
            return [np.concatenate([value.ravel() for value in part])]
    return every


def _single(value: Array) -> Array:
    """Float32 that was sent as float64 as it was."""
    single = value.astype(np.float32) if value.dtype == np.float64 else value
    return single if np.array_equal(single, value) else value


def _are_differences(pairs: Pairs) -> bool:
    """Whether replies are differences of weights in the format that was sent, with all digits."""
    multiples = [b / np.spacing(np.abs(a)).astype(np.float64) for a, b in _small(pairs)]
    entries = np.concatenate([*multiples, np.empty(0)])
    odd = np.abs(entries % 2) == 1
    # Sums in the next lower binade have a digit more.
    whole = (2 * entries) % 1 == 0
    enough = len(entries) >= _FEWEST and whole.mean() >= _ON_GRID
    return bool(enough and odd.mean() >= _ODD)


def weights_behind(sent: Array, reply: Array, kind: Kind) -> Array:
    """The trained weights, in the format of those sent, of a difference or a pseudo-gradient."""
    sign = -1 if kind == "pseudo-gradient" else 1
    return np.asarray(sent + sign * reply.astype(np.float64)).astype(sent.dtype)


def _summable(pairs: Pairs, sign: int) -> float:
    """Share of the differences that can be added to what was sent without rounding."""
    exact = [
        (a + (sign * b).astype(a.dtype)).astype(np.float64) - a == sign * b.astype(np.float64)
        for a, b in _small(pairs)
    ]
    return float(np.concatenate([*exact, np.ones(1)]).mean())


def _small(pairs: Pairs) -> list[tuple[Array, Array]]:
    """Entries that differ from 0 and are small beside their weight, of some millions at most."""
    step = 1 + sum(len(a) for a, _ in pairs) // _LOOKED_AT
    entries = []
    for a, b in ((a[::step], b[::step]) for a, b in pairs):
        small = (b != 0) & (np.abs(b) < _SMALL * np.abs(a))
        entries.append((a[small], b[small]))
    return entries


def _products(pairs: Pairs) -> tuple[float, float, float]:
    """Squared norms of what was sent and of the replies, and their inner product."""
    sums = np.zeros(3)
    for a, b in pairs:
        wide = np.promote_types(np.promote_types(a.dtype, b.dtype), np.float32)
        a, b = a.astype(wide, copy=False), b.astype(wide, copy=False)
        sums += [np.vdot(a, a), np.vdot(b, b), np.vdot(a, b)]
    return float(sums[0]), float(sums[1]), float(sums[2])


def _head_sign(received: Arrays, examples: int | None = None) -> int:
    """1 if the last biases rise at few classes, -1 if they fall there, 0 if they do not tell.

    A gradient falls at no more classes than there are examples.
    """
    vectors = [v for v in received.values() if v.ndim == 1 and v.dtype.kind == "f"]
    if not vectors or vectors[-1].size < _TELLING:
        return 0
    bias = vectors[-1].astype(np.float64)
    if not abs(bias.sum()) < _ZERO_SUM * np.abs(bias).sum():
        return 0
    most = examples or max(1, _FEW * bias.size)
    rising, falling = int((bias > 0).sum()), int((bias < 0).sum())
    return int(rising <= most < falling) - int(falling <= most < rising)
