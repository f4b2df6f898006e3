"""How unlikely an update is if a guess were true: under noise, signs and pruned examples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attacks.observed.distance import EPSILON
from fedsim.magnitudes import median_magnitude
from fedsim.types import Tensors

SHARP = 0.01
"""Width of the logistic function that is a sign's probability, in medians of the guess's
magnitudes but 0."""
ROUNDED = 1e-3
"""Relative error of a tensor's length that no float32 sum exceeds."""
OUTLYING = 3.0
"""Width of the distribution of errors in ranks, in median errors of what was kept."""
PROBIT = 1.702
"""A normal distribution function is nearly a logistic one of a deviation by this."""
_CLOSEST = 1e-14
"""Distance that float32 cannot tell from 0."""
_FLIPS = (1e-6, 0.499)
"""Least and largest share of flipped signs."""


def surprise(distance: Tensor, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` up to a constant, of Gaussian noise of unknown variance.

    The gradient is known up to a positive scale, as to the cosine. With both chosen to fit best, it
    is ``N / 2 log(1 - cosine^2)`` over the ``N`` coordinates that are not 0. It falls without end
    as the distance does, so that without noise no regulariser outweighs the update.

    Args:
        distance: ``1 - cosine``; above 1, where the scale would be negative, more is worse.
        observed: received gradients.
    """
    count = torch.stack([(value != 0).sum() for value in observed.values()]).sum()
    close = (distance + _CLOSEST) * (2 - distance)
    share = torch.where(distance < 1, close, 1 + (distance - 1).square())
    return count / 2 * share.log()


def sign_surprise(
    guess: Tensors, observed: Tensors, dither: float = 0.0, *, flipped: bool = False
) -> Tensor:
    """``-log p(observed | guess)`` of signs: each is as likely as the guess's gradient is clear.

    Args:
        guess: gradients.
        observed: signs, 0 where there is none.
        dither: standard deviation of the noise that was added before the signs were taken.
        flipped: noise was added to the signs. The share of those that it flipped is taken to be
            that of the guess's wrong ones.
    """
    width = SHARP * median_magnitude({name: guess[name] for name in observed})
    width = (width.square() + (dither / PROBIT) ** 2).sqrt()
    clear = torch.cat([(value.sign() * guess[name]).flatten() for name, value in observed.items()])
    signed = torch.cat([(value != 0).flatten() for value in observed.values()])
    likely = logsigmoid(clear / width)
    if flipped:
        wrong = (signed & (clear.detach() < 0)).sum() / signed.sum().clamp(min=1)
        wrong = wrong.clamp(*_FLIPS)
        likely = ((1 - 2 * wrong) * likely.exp() + wrong).log()
    return -(signed * likely).sum()


def length_surprise(guess: Tensors, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` of directions orthogonal to the gradient, of its lengths.

    Each tensor says two things of the gradient: its length, up to rounding, and that their angle is
    a right one, which it is within ``1 / sqrt(N)`` for nearly any other, too.
    """
    parts = []
    for name, value in observed.items():
        guessed, other = guess[name].flatten(), value.flatten()
        squares = guessed.square().sum() + EPSILON**2, other.square().sum() + EPSILON**2
        angle = (guessed * other).sum().square() / (squares[0] * squares[1])
        length = (squares[0] / squares[1]).log() / 2
        parts.append(((length / ROUNDED).square() + other.numel() * angle) / 2)
    return torch.stack(parts).sum()


def rank_surprise(guess: Tensors, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` of a mean of pruned examples: Cauchy, wide as the errors are.

    What an example keeps is a matter of ranks. Near the truth few ranks are wrong, but by all of a
    coordinate, which would outweigh every small error in a sum of squares. The gradient is known up
    to the scale that most coordinates agree on.
    """
    guessed = torch.cat([guess[name].flatten() for name in observed])
    other = torch.cat([value.flatten() for value in observed.values()])
    sent = other != 0
    agreed = sent & (guessed != 0)
    ratios = (other / guessed.detach().where(agreed, 1)).abs()
    scale = ratios.where(agreed, torch.nan).nanmedian().nan_to_num(1.0)
    errors = other - scale * guessed
    usual = errors.detach().abs().where(sent, torch.nan).nanmedian().nan_to_num(0.0)
    width = OUTLYING * usual + _CLOSEST * other.abs().max() + EPSILON
    return (errors / width).square().log1p().sum() + sent.sum() * width.log()
