"""Distances between the gradients of guessed images and the received one, and total variation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import logsigmoid

from attacks.observed.declared import declared
from attacks.observed.distance import EPSILON, cosine_distance
from attacks.observed.replay import Replay
from fedsim.capture import Observation
from fedsim.defenses.chain import Chain
from fedsim.defenses.prune import Prune
from fedsim.defenses.sign import Sign
from fedsim.types import Batch, Tensors

ImageForm: TypeAlias = Literal["cosine", "support", "ranks", "signs", "interval"]
WIDTH = 0.05
"""Width of the tanh that stands for a sign, in medians of the guess's magnitudes but 0."""
SHARP = 0.01
"""Width of the logistic function that is a sign's probability, in the same medians."""
OUTLYING = 3.0
"""Width of the distribution of errors in ranks, in median errors of what was kept."""
_CLOSEST = 1e-14
"""Distance that float32 cannot tell from 0."""
SMOOTHER = 16.0
"""Factor of the total variation where signs are compared, whose distance is large at the truth."""


@dataclass(frozen=True)
class ImageLoss:
    """The matching loss of one guess, a pure function for ``torch.func``.

    Attributes:
        form: ``cosine`` is that of Inverting Gradients. ``support`` leaves out coordinates that
            were received as 0, for pruned updates (Wu et al. 2022, appendix A). ``ranks`` prunes
            each example of the guess, for means of pruned examples. ``signs`` compares
            signs, see ``sign_distance``. ``interval`` leaves out what rounding explains.
        chain: whose surrogate the guess's gradient passes through; empty for none.
        each: whether every example passes alone, before the mean is taken.
    """

    model: Replay
    form: ImageForm = "cosine"
    chain: Chain = field(default_factory=Chain)
    each: bool = False

    @property
    def smoother(self) -> float:
        """Factor of the total variation that this loss needs."""
        return SMOOTHER if self.form == "signs" else 1.0

    @property
    def network(self) -> nn.Module:
        """As broadcast."""
        return self.model.network

    def __call__(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """The loss of ``images (example, channel, height, width)``, a scalar."""
        return self.evidence(images, labels, observed)[0]

    def evidence(self, images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
        """The loss, and ``-log p(observed | images)`` up to a constant, both scalars."""
        guess = self.update(images, labels)
        if self.form == "signs":
            return sign_distance(guess, observed), sign_surprise(guess, observed)
        if self.form == "support":
            kept = {name: (value != 0).to(value.dtype) for name, value in observed.items()}
            distance = cosine_distance(guess, observed, kept)
        elif self.form == "interval":
            distance = cosine_distance(guess, nearest(guess, observed, self.chain.slack(observed)))
        elif self.form == "ranks":
            return cosine_distance(guess, observed), rank_surprise(guess, observed)
        else:
            distance = cosine_distance(guess, observed)
        return distance, surprise(distance, observed)

    def update(self, images: Tensor, labels: Tensor) -> Tensors:
        """What the client would send of the guess, as far as that has a slope."""
        if not self.each:
            return self.chain.surrogate(self.model.differentiable(Batch(images, labels)))

        def one(image: Tensor, label: Tensor) -> Tensors:
            return self.chain.surrogate(self.model.pure_gradient(Batch(image[None], label[None])))

        single: Tensors = vmap(one)(images, labels)
        return {name: value.mean(0) for name, value in single.items()}


def matching_loss(model: Replay, observation: Observation, *, adaptive: bool) -> ImageLoss:
    """The cosine distance, or the loss that fits the declared defense.

    The mean of several examples' signs takes the cosine of the mean of their ``tanh(g / tau)``,
    where a declared tau or median is divided by a hundred, so that the truth fits; the paper has no
    tau, and gradients are so small that its tanh is the identity. So does that of
    a cohort whose clients have one example each. Signs of the mean are compared as those of one
    example. Noise and clipping leave the cosine as it is.

    Raises:
        CannotAttack: adaptive, and the server does not know the defense.
    """
    if not adaptive:
        return ImageLoss(model)
    chain = declared(observation)
    known = observation.knowledge
    several = known.num_examples != 1
    # Each of the cohort's clients defends the gradient of one example.
    singles = 1 < known.cohort == known.num_examples
    signs = [defense for defense in chain.defenses if "sign" in defense.distortions]
    if signs and not (several and (singles or signs[-1].per_example)):
        return ImageLoss(model, "signs")
    apart = several and chain.per_example
    if "sparsity" in chain.distortions and not signs and not apart:
        return ImageLoss(model, "support")
    # A mean over a cohort has no common steps.
    alone = not signs and known.cohort == 1
    sharp = alone and {"rounding", "noise"} & chain.distortions == {"rounding"}
    form: ImageForm = "interval" if sharp else "cosine"
    if apart and all(isinstance(own, Prune) and own.keep == "largest" for own in chain.defenses):
        form = "ranks"
    apart = apart or (singles and bool({"sign", "scale"} & chain.distortions))
    sharper = tuple(
        _SteepSign(**vars(defense)) if isinstance(defense, Sign) else defense
        for defense in chain.defenses
    )
    chain = replace(chain, defenses=sharper)
    return ImageLoss(model, form, chain, each=apart)


class _SteepSign(Sign):
    """Signs whose surrogate is nearly a step."""

    def width(self, update: Tensors) -> Tensor | float:
        return SHARP * super().width(update)


def nearest(guess: Tensors, observed: Tensors, slack: Tensors) -> Tensors:
    """Of all that rounds to what was received, what is nearest to the guess; constants.

    The guess is first scaled to fit best, as the cosine does. At the truth the result is the truth,
    so that its distance is 0 instead of the rounding error.

    Args:
        guess: gradients.
        observed: received gradients.
        slack: how far each coordinate may lie from what was received, broadcast against it.
    """
    sums = [
        torch.stack([(guess[name] * value).sum(), guess[name].square().sum()]).detach()
        for name, value in observed.items()
    ]
    inner, energy = torch.stack(sums).sum(0).unbind()
    scale = inner.clamp(min=0) / (energy + EPSILON**2)
    return {
        name: (scale * guess[name].detach()).clamp(value - slack[name], value + slack[name])
        for name, value in observed.items()
    }


def surprise(distance: Tensor, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` up to a constant, of Gaussian noise of unknown variance.

    The gradient is known up to a positive scale, as to the cosine. With both chosen to fit best, it
    is ``N / 2 log(1 - cosine^2)`` over the ``N`` coordinates that are not 0. Where there is no
    noise, ever smaller distances count, as no fixed weight beside a regulariser lets them.

    Args:
        distance: ``1 - cosine``; above 1, where the scale would be negative, more is worse.
        observed: received gradients.
    """
    count = torch.stack([(value != 0).sum() for value in observed.values()]).sum()
    close = (distance + _CLOSEST) * (2 - distance)
    share = torch.where(distance < 1, close, 1 + (distance - 1).square())
    return count / 2 * share.log()


def sign_surprise(guess: Tensors, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` of signs: logistic in the guess's gradient, steep at 0."""
    width = SHARP * Sign().width({name: guess[name] for name in observed})
    parts = [
        (value != 0) * logsigmoid(value.sign() * guess[name] / width)
        for name, value in observed.items()
    ]
    return -torch.stack([part.sum() for part in parts]).sum()


def rank_surprise(guess: Tensors, observed: Tensors) -> Tensor:
    """``-log p(observed | guess)`` of a mean of pruned examples: Cauchy, wide as the errors are.

    What an example keeps is a matter of ranks. Near the truth few ranks are wrong, but by all of a
    coordinate, which would outweigh every small error in a sum of squares. The gradient is known up
    to the scale that most coordinates agree on.
    """
    own = torch.cat([guess[name].flatten() for name in observed])
    other = torch.cat([value.flatten() for value in observed.values()])
    kept = other != 0
    agreed = kept & (own != 0)
    ratios = (other / own.detach().where(agreed, 1)).abs()
    scale = ratios.where(agreed, torch.nan).nanmedian().nan_to_num(1.0)
    errors = other - scale * own
    usual = errors.detach().abs().where(kept, torch.nan).nanmedian().nan_to_num(0.0)
    width = OUTLYING * usual + _CLOSEST * other.abs().max() + EPSILON
    return (errors / width).square().log1p().sum() + kept.sum() * width.log()


def sign_distance(guess: Tensors, observed: Tensors) -> Tensor:
    """``1 - cosine`` between ``tanh(g / width)`` and the signs, over coordinates that have one.

    Nearly the share of wrong signs, small coordinates counting like large ones, of which each tells
    as much. Wu et al. 2022, appendix A, weigh wrong signs by their energy, which is nearly 0 for
    images far from the truth.
    """
    width = WIDTH * Sign().width({name: guess[name] for name in observed})
    signs = {name: value.sign() for name, value in observed.items()}
    kept = {name: value.abs() for name, value in signs.items()}
    return cosine_distance({name: (guess[name] / width).tanh() for name in signs}, signs, kept)


def total_variation(images: Tensor) -> Tensor:
    """Mean over pixels of the absolute differences to the right and lower neighbour.

    A border pixel's neighbour outside the image is itself.
    """
    right = (images[..., :, 1:] - images[..., :, :-1]).abs().sum()
    lower = (images[..., 1:, :] - images[..., :-1, :]).abs().sum()
    return (right + lower) / images.numel()
