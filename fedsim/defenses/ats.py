"""ATS: images are shifted, brightened and sharpened before the gradient is computed."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.defenses.base import Defense, DefenseFamily, Distortion
from fedsim.errors import ConfigError
from fedsim.types import Batch

Transformation: TypeAlias = Callable[[Tensor, float], Tensor]
"""Of an image ``(channel, height, width)`` in [0, 1], by a signed magnitude."""


@dataclass(frozen=True, kw_only=True)
class Ats(Defense):
    """Trains on transformed images (Gao et al. 2021, "ATS").

    A policy is a row of transformations by their numbers in the authors' list, each to one side or
    the other at random, and one of ``policies`` is drawn for every image. The default is that of
    CIFAR-10 and a convolutional network in the benchmark by which Balunovic et al. 2022 attack it.
    Only the transformations of that default can be named; images stay floating-point, where those
    of the authors are bytes.

    What a policy shifts out of the image is gone. The rest is an image that the update tells as it
    tells any other. An adaptive attacker moves it back, by the shift whose border is the blackest.

    Attributes:
        policies: numbers joined by hyphens, such as ``21-13-3``.
    """

    title: ClassVar[str] = "ATS"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = "The policies; the image is moved back by the border that fits."
    claim: ClassVar[str] = '"infeasible for the adversary to extract any useful information"'
    loses: ClassVar[frozenset[Distortion]] = frozenset({"inputs"})

    policies: Annotated[tuple[str, ...], Field(min_length=1)] = ("21-13-3", "7-4-15")

    def __post_init__(self) -> None:
        for number in itertools.chain(*(policy.split("-") for policy in self.policies)):
            if not number.isdecimal() or int(number) not in TRANSFORMATIONS:
                raise ValueError(
                    f"policies names the transformation {number!r}; "
                    f"known are {', '.join(map(str, sorted(TRANSFORMATIONS)))}"
                )

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        """The transformed images; the model is not used.

        Raises:
            ConfigError: the examples are no images.
        """
        del model
        if not batch.inputs.is_floating_point():
            raise ConfigError("ats: it transforms images, and these are token ids. Choose images.")
        images = []
        for image in batch.inputs:
            drawn = torch.randint(2**16, (2,), generator=rng, device=rng.device).tolist()
            cases = list(_cases(self.policies[drawn[0] % len(self.policies)]))
            changed = image
            for kind, magnitude in cases[drawn[1] % len(cases)]:
                changed = kind(changed, magnitude)
            images.append(changed)
        return replace(batch, inputs=torch.stack(images))

    def recover(self, batch: Batch, model: nn.Module) -> Batch:
        """The images moved back and their brightness undone; what is gone is the mean of the rest.

        Of all that the policies may have done, the one whose border is black and whose image is not
        is taken, and among equals that of the usual brightness.
        """
        del model
        return replace(batch, inputs=torch.stack([*map(self._recovered, batch.inputs)]))

    def _recovered(self, image: Tensor) -> Tensor:
        cases = [case for policy in self.policies for case in _cases(policy)]
        guesses = [_undone(image, case) for case in cases]
        return min(guesses, key=lambda guess: guess.misfit).image


class _Undone(NamedTuple):
    misfit: float
    image: Tensor


def _cases(policy: str) -> Iterator[list[tuple[Transformation, float]]]:
    """All choices of sides of a policy's transformations."""
    steps = [TRANSFORMATIONS[int(number)] for number in policy.split("-")]
    for sides in itertools.product((-1, 1), repeat=len(steps)):
        yield [(kind, size * side) for (kind, size), side in zip(steps, sides, strict=True)]


def _undone(image: Tensor, case: list[tuple[Transformation, float]]) -> _Undone:
    """What the image was, if this case made it, and how badly that fits."""
    covered, factor = torch.ones_like(image), 1.0
    for kind, magnitude in case:
        covered = kind(covered, magnitude) if kind in _SHIFTS else covered
        factor *= 1 + magnitude if kind is brighten else 1.0
    clear = (image / factor).clamp(0, 1)
    mean = (clear * covered).sum() / covered.sum().clamp(min=1)
    # A black column may belong to the image, a bright one not to the border.
    energy = image.square()
    outside = (energy * (1 - covered)).sum() / energy.sum().clamp(min=_TINY)
    empty = 1 - covered.mean()
    for kind, magnitude in reversed(case):
        if kind in _SHIFTS:
            clear, covered = kind(clear, -magnitude), kind(covered, -magnitude)
    back = clear.where(covered > 0, mean)
    return _Undone(float(outside - empty + _USUAL * (mean - 0.5).abs()), back)


def shift_x(image: Tensor, share: float) -> Tensor:
    """Column x of the result is column ``x + share * width``, rounded; what is outside is black."""
    return _shifted(image, share, 2)


def shift_y(image: Tensor, share: float) -> Tensor:
    """Row y of the result is row ``y + share * height``, rounded; what is outside is black."""
    return _shifted(image, share, 1)


def _shifted(image: Tensor, share: float, axis: int) -> Tensor:
    size = image.shape[axis]
    places = torch.arange(size, device=image.device) + math.floor(share * size + 0.5)
    inside = (places >= 0) & (places < size)
    moved = image.index_select(axis, places.clamp(0, size - 1))
    return moved * (inside[:, None] if axis == 1 else inside)


def brighten(image: Tensor, change: float) -> Tensor:
    """The image times ``1 + change``, cut to [0, 1]."""
    return (image * (1 + change)).clamp(0, 1)


def sharpen(image: Tensor, change: float) -> Tensor:
    """The image plus ``change`` times its difference to a smoothed one, cut to [0, 1].

    Pixels are smoothed with their eight neighbours at a fifth of their own weight, except at the
    border.
    """
    weights = torch.ones(3, 3).to(image)
    weights[1, 1] = 5
    kernel = (weights / 13).expand(image.shape[0], 1, 3, 3)
    smooth = image.clone()
    smooth[:, 1:-1, 1:-1] = F.conv2d(image[None], kernel, groups=image.shape[0])[0]
    return (smooth + (1 + change) * (image - smooth)).clamp(0, 1)


_STEP = 150 / 331 / 9
TRANSFORMATIONS: dict[int, tuple[Transformation, float]] = {
    3: (shift_x, 9 * _STEP),
    4: (sharpen, 0.5 / 9),
    7: (shift_y, 2 * _STEP),
    13: (brighten, 5 * 0.5 / 9),
    15: (brighten, 0.5),
    21: (shift_x, 5 * _STEP),
}
"""Number in the authors' list -> transformation and magnitude."""
_SHIFTS = {shift_x, shift_y}
_USUAL = 0.1
"""Weight of a mean brightness of a half, small beside a border that does not fit."""
_TINY = 1e-9
