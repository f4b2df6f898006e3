"""What ``certified`` and ``consistent`` mean. No other module decides either.

A guess is *certified* if it, put through the client's step as far as the attacker knows it, makes
the observed message ``G`` up to stated rounding. With the message ``g`` that the guess makes and
one factor ``a > 0`` for all of it (of a loss that is a sum, of clipping, of an unknown step size),

    ||G - a g|| / ||G|| <= float_sums + 2 ||half an ulp of each entry|| / ||G|| <= loosest

has to hold for the whole message, and for those parts of it that show a small change of the guess
best. Single tensors may show what is lost in them together, as queries and keys show the order of
words that values hardly do; in each the error has to stay below its own bound. A part that the
message owes to one example alone proves that example.

A guess is *consistent* if noise explains what it leaves of the message, and the same cannot be said
of guesses that differ in one word.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.records import Certificate
from fedsim.store.capture import Kind, Observation
from fedsim.types import Tensors

FLOAT_SUMS = 1e-4
"""Relative error of a message that a client's own float32 sums explain."""
LOOSEST = 0.01
"""Largest relative error that a proof may put down to rounding; a wire that needs a larger bound
certifies nothing."""
P_VALUE = 0.01
"""Smallest p-value of a consistent guess."""
_RIVAL = 1e-6
"""Largest p-value of guesses that differ from it in a word."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How far the message that a guess makes is from the observed one.

    Attributes:
        error: ``||G - a g|| / ||G||`` of the part with the largest error for its bound.
        bound: what rounding explains of it.
        factor: the best ``a``; 1 where there is none.
    """

    error: float
    bound: float
    factor: float = 1.0

    @property
    def holds(self) -> bool:
        """Whether rounding explains the whole difference: what certifies a guess."""
        return self.error <= self.bound <= LOOSEST


def bound(rounding: float) -> float:
    """What rounding explains of a message, given the relative error of its wire."""
    return FLOAT_SUMS + 2 * rounding


def coarse_note(observation: Observation) -> str:
    """Why no guess can be certified, where the wire is too coarse for it; else empty."""
    seen = rounding = 0.0
    for name, value in observation.received.items():
        if value.is_floating_point():
            seen += float(observation.update((name,))[name].square().sum())
            rounding += float(_rounding(value, observation.kind)[0])
    largest = bound((rounding / seen) ** 0.5) if seen else 0.0
    if largest <= LOOSEST:
        return ""
    types = {str(value.dtype).removeprefix("torch.") for value in observation.received.values()}
    return (
        f"not certified: rounding to {' and '.join(sorted(types))} explains up to {largest:.1%} of "
        f"the update, and a proof allows {LOOSEST:.0%}"
    )


NO_PROOF = Proof(1.0, FLOAT_SUMS)
"""Of a guess that makes nothing of the message, or no message at all."""


def certificate(proof: Proof, support: Certificate = "guess", *, sharp: bool = True) -> Certificate:
    """``certified`` if the proof holds, else what supports the guess without one.

    Args:
        proof: of the guess.
        support: its level if it is not proven.
        sharp: whether no other guess makes the message within the same rounding, where values are
            continuous and the wire is coarse.
    """
    return "certified" if proof.holds and sharp else support


def support(guess: float, rivals: Iterable[float]) -> Certificate:
    """``consistent`` if noise explains a guess and none of its rivals, by their p-values.

    Noise may be so strong that wrong words pass as well; then nothing is consistent.
    """
    rejected = False
    for rival in rivals if guess >= P_VALUE else ():
        rejected = rival < _RIVAL
        if not rejected:
            break
    return "consistent" if rejected else "guess"


def compare(
    observation: Observation,
    descent: Tensors,
    parts: Sequence[Collection[str]] = (),
    idle: Tensors | None = None,
    alone: Collection[str] = (),
) -> Proof:
    """Compare the message that a guess makes with the observed one.

    Args:
        observation: holds the observed message.
        descent: direction of descent that the guess makes, of the tensors that were sent.
        parts: names of tensors that show a small change of the guess best, compared alone, too.
        idle: what the client sends without any example, as by weight decay; it proves nothing and
            is subtracted from both.
        alone: names of tensors that are compared one by one as well, however coarse the wire is
            for each. Without it five of 1,000 random messages, in bfloat16 and float16, fit two
            words in either order.
    """
    single = [(name,) for name in alone if name in descent]
    sums: list[list[Tensor]] = [[] for _ in (descent, *parts, *single)]  # read once, at the end
    for name, value in descent.items():
        goal = observation.update((name,))[name].to(value.device).flatten()
        guess = value.double().flatten()
        if idle is not None:
            goal, guess = goal - idle[name].flatten(), guess - idle[name].flatten()
        shares, steps = (
            part.to(value.device)
            for part in _rounding(observation.received[name], observation.kind)
        )
        row = torch.stack((goal @ goal, guess @ guess, goal @ guess, shares, steps))
        for rows, part in zip(sums, (descent, *parts, *single), strict=True):
            if name in part:
                rows.append(row)
    totals = [torch.stack(rows).sum(0).tolist() if rows else [0.0] * 5 for rows in sums]
    proofs = [_proof(*total[:4]) for total in totals[: len(totals) - len(single)]]
    # A tensor that neither moves, as the A of adapters at first, shows nothing.
    moved = [(*total[:3], total[4]) for total in totals[len(proofs) :] if total[0] or total[1]]
    wrong = [proof for total in moved if (proof := _proof(*total)).error > proof.bound]
    return max(proofs + wrong, key=lambda proof: proof.error / proof.bound)


def _proof(seen: float, guessed: float, both: float, rounding: float) -> Proof:
    """The proof of squared norms, an inner product and squared rounding."""
    if not both > 0:
        return NO_PROOF
    error = max(0.0, 1 - both**2 / (seen * guessed)) ** 0.5
    return Proof(error, bound(rounding**0.5 / seen**0.5), both / guessed)


def _rounding(received: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The largest squared error that rounding to the wire's dtype causes, float64.

    That of a float32 gradient is part of ``FLOAT_SUMS``. The second one counts that steps
    below the smallest normal number stay the same; a tensor that fits within it may hide any
    change, so that it counts against a guess alone, never for one.
    """
    if kind == "gradient" and received.dtype in {torch.float32, torch.float64}:
        none = received.new_zeros((), dtype=torch.float64)
        return none, none
    number, sizes = torch.finfo(received.dtype), received.double().abs()
    share = (number.eps / 2) ** 2
    return share * sizes.square().sum(), share * sizes.clamp(
        min=number.smallest_normal
    ).square().sum()
