"""Distances and likelihoods of the gradients of guessed images, and total variation."""

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import logsigmoid

from attacks.observed.declared import declared, granted_noise
from attacks.observed.distance import EPSILON, cosine_distance
from attacks.observed.replay import Replay, step_length
from fedsim.defenses.base import Defense
from fedsim.defenses.chain import Chain
from fedsim.magnitudes import median_magnitude
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

ImageForm: TypeAlias = Literal["cosine", "support", "ranks", "signs", "interval", "lengths"]
WIDTH = 0.05
"""Width of the tanh that stands for a sign, in medians of the guess's magnitudes but 0."""
_RANK_ONE = 0.999
"""Share of a matrix's energy squared in its first singular value, from which it has rank 1."""
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
            ``lengths`` compares those of the tensors, where these are not plainly a gradient.
        chain: whose surrogate the guess's gradient passes through, and which tells what of it is
            comparable; empty for none.
        each: whether every example passes alone, before the mean is taken.
        dither: standard deviation of the noise that a gradient got before its signs were taken.
        flipped: whether noise was added to the signs.
    """

    model: Replay
    form: ImageForm = "cosine"
    chain: Chain = field(default_factory=Chain)
    each: bool = False
    dither: float = 0.0
    flipped: bool = False

    @property
    def smoother(self) -> float:
        """Factor of the total variation that this loss needs."""
        return SMOOTHER if self.form == "signs" else 1.0

    def __call__(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """The loss of ``images (example, channel, height, width)``, a scalar."""
        return self._distance(*self.chain.comparable(self.update(images, labels), observed))

    def evidence(self, images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
        """The loss, and ``-log p(observed | images)`` up to a constant, both scalars."""
        guess, observed = self.chain.comparable(self.update(images, labels), observed)
        distance = self._distance(guess, observed)
        if self.form == "signs":
            return distance, sign_surprise(guess, observed, self.dither, flipped=self.flipped)
        if self.form == "ranks":
            return distance, rank_surprise(guess, observed)
        if self.form == "lengths":
            plain = surprise(cosine_distance(guess, observed), observed)
            return distance, torch.where(_plain(observed), plain, length_surprise(guess, observed))
        return distance, surprise(distance, observed)

    def _distance(self, guess: Tensors, observed: Tensors) -> Tensor:
        if self.form == "signs":
            return sign_distance(guess, observed)
        if self.form == "support":
            support = {name: (value != 0).to(value.dtype) for name, value in observed.items()}
            return cosine_distance(guess, observed, support)
        if self.form == "lengths":
            lengths = length_surprise(guess, observed) * ROUNDED**2
            return torch.where(_plain(observed), cosine_distance(guess, observed), lengths)
        if self.form == "interval":
            return cosine_distance(guess, nearest(guess, observed, self.chain.slack(observed)))
        return cosine_distance(guess, observed)

    def update(self, images: Tensor, labels: Tensor) -> Tensors:
        """What the client would send of the guess, as far as that has a slope."""
        if not self.each:
            return self.chain.surrogate(self.model.differentiable(Batch(images, labels)))

        def of_example(image: Tensor, label: Tensor) -> Tensors:
            return self.chain.surrogate(self.model.pure_gradient(Batch(image[None], label[None])))

        single: Tensors = vmap(of_example)(images, labels)
        return {name: value.mean(0) for name, value in single.items()}


def matching_loss(model: Replay, observation: Observation, *, adaptive: bool) -> ImageLoss:
    """The cosine distance, or the loss that fits the declared defense.

    The mean of several examples' signs takes the cosine of the mean of their ``tanh(g / width)``,
    and so does that of a cohort whose clients have one example each. The paper takes ``tanh(g)``,
    but gradients are so small that this is nearly ``g``. Signs of the mean are compared as those of
    one example. Noise and clipping leave the cosine as it is.

    Raises:
        CannotAttack: adaptive, and the server does not know the defense.
    """
    if not adaptive:
        return ImageLoss(model)
    chain = declared(observation)
    known = observation.knowledge
    if "orthogonal" in chain.distortions:
        return ImageLoss(model, "lengths")
    several = known.num_examples != 1
    # Each of the cohort's clients defends the gradient of one example.
    singles = 1 < known.cohort == known.num_examples
    signs = [i for i, defense in enumerate(chain.defenses) if "sign" in defense.distortions]
    last = signs[-1] if signs else 0
    if signs and not (several and (singles or chain.defenses[last].per_example)):
        flipped = any("noise" in defense.distortions for defense in chain.defenses[last + 1 :])
        return ImageLoss(model, "signs", dither=_dither(observation, last), flipped=flipped)
    zeroing = [defense for defense in chain.defenses if "sparsity" in defense.distortions]
    ranked = several and all(_ranks_each(defense) for defense in zeroing)
    if zeroing and not signs and not ranked:
        return ImageLoss(model, "support")
    # A mean over a cohort has no common steps.
    alone = not signs and known.cohort == 1
    rounded = alone and {"rounding", "noise"} & chain.distortions == {"rounding"}
    form: ImageForm = "interval" if rounded else "cosine"
    if several and all(_ranks_each(defense) for defense in chain.defenses) and zeroing:
        form = "ranks"
    apart = singles and bool({"sign", "scale"} & chain.distortions)
    surrogate = replace(chain, defenses=tuple(defense.sharp(SHARP) for defense in chain.defenses))
    return ImageLoss(model, form, surrogate, each=apart or (several and chain.per_example))


def _plain(observed: Tensors) -> Tensor:
    """Whether the last matrix is the gradient of one example, hence of rank 1; a bool scalar."""
    matrix = [value for value in observed.values() if value.dim() == 2][-1]
    table = matrix @ matrix.mT
    return table.square().sum() > _RANK_ONE * table.diagonal().sum().square()


def _ranks_each(defense: Defense) -> bool:
    """Whether it keeps the largest coordinates of each example."""
    return defense.keeps_largest and defense.per_example


def _dither(observation: Observation, place: int) -> float:
    """Standard deviation of what the defenses before this one add to a gradient; 0 if unknown."""
    known = observation.knowledge
    first = known.model_copy(update={"defense": (known.defense or ())[:place]})
    scaled = observation.kind != "gradient" and None in {known.learning_rate, known.local_steps}
    noise = None if scaled else granted_noise(replace(observation, knowledge=first))
    return (noise or 0.0) / (step_length(observation) if noise else 1.0)


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


def sign_distance(guess: Tensors, observed: Tensors) -> Tensor:
    """``1 - cosine`` between ``tanh(g / width)`` and the signs, over coordinates that have one.

    Nearly the share of wrong signs, small coordinates counting like large ones, of which each tells
    as much. Wu et al. 2022, appendix A, weigh wrong signs by their energy, which is nearly 0 for
    images far from the truth.
    """
    width = WIDTH * median_magnitude({name: guess[name] for name in observed})
    signs = {name: value.sign() for name, value in observed.items()}
    weights = {name: value.abs() for name, value in signs.items()}
    return cosine_distance({name: (guess[name] / width).tanh() for name in signs}, signs, weights)


def total_variation(images: Tensor) -> Tensor:
    """Mean over pixels of the absolute differences to the right and lower neighbour.

    A border pixel's neighbour outside the image is itself.
    """
    right = (images[..., :, 1:] - images[..., :, :-1]).abs().sum()
    lower = (images[..., 1:, :] - images[..., :-1, :]).abs().sum()
    return (right + lower) / images.numel()


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
