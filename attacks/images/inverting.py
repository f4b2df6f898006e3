"""Inverting Gradients (Geiping et al. 2020): cosine distance, total variation, signed Adam."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Reconstruction
from attacks.engine.descent import Objective
from attacks.images.image_losses import total_variation
from attacks.images.image_matching import ImageMatching, best_restarts
from attacks.images.victims import MatchingLoss, VictimGroup
from fedsim.tasks.base import Task
from fedsim.types import Tensors

STEPS = 4800
"""Steps of the paper's search."""
DEVIATION = 0.25
"""Standard deviation by which pixels are normalised, about that of natural images."""


@dataclass(frozen=True)
class Inverting(ImageMatching):
    """Match gradients by cosine distance and total variation over the pixels of a batch.

    Inverting Gradients (Geiping et al. 2020) minimises ``1 - cosine + total_variation * TV(x)`` by
    Adam on the sign of the derivative, with projection to [0, 1] after each step. The learning rate
    falls by 0.1 at 3/8, 5/8 and 7/8 of the steps, and the restart with the lowest matching loss,
    without TV, wins. We differ in five points: pixels are normalised by a mean of .5 and a
    deviation of .25 instead of a data set's; a search of fewer steps than 4,800 gets as many times
    the total variation, since it ends in noise otherwise; the best iterate is kept instead of the
    last; labels are inferred if not granted; and restarts and victims are lanes of one ``vmap``. A
    FedAvg update is matched as if it were a gradient, which the cosine permits.

    Where what the search found is likelier when smoothed by a prior, of the auxiliary images or of
    natural ones, these are guessed, and the prior's mean where that is likelier still, see
    ``attacks.images.victims``.

    Attributes:
        steps: of Adam.
        learning_rate: of Adam at the start, in normalised pixels.
        total_variation: weight of TV in normalised pixels at 4,800 steps or more; sixteen times as
            much where signs are compared.
    """

    title: ClassVar[str] = "Inverting Gradients"

    total_variation: Annotated[float, Field(ge=0)] = 3e-3
    steps: Annotated[int, Field(ge=1)] = STEPS
    learning_rate: Annotated[float, Field(gt=0)] = 0.1

    @property
    def pixel_variation(self) -> float:
        """Weight of the total variation of pixels in [0, 1]."""
        return self.total_variation / DEVIATION * max(1.0, STEPS / self.steps)

    def search(self, victims: VictimGroup, task: Task) -> list[Reconstruction]:
        """A lane is one restart of one victim."""
        # Grey of mean .5 and deviation .25: N(0, 1) in the normalised pixels of the paper.
        shape = (victims.labels.shape[1], *task.spec.input_shape)
        return best_restarts(
            victims,
            lambda rng: (0.5 + DEVIATION * torch.randn(shape, generator=rng)).clamp(0, 1),
            pixel_objective(victims.loss, victims.loss.smoother * self.pixel_variation),
            lambda images: images,
            restarts=self.restarts,
            lanes=self.lanes,
            steps=self.steps,
            learning_rate=DEVIATION * self.learning_rate,
            pixels=True,
        )


def pixel_objective(loss: MatchingLoss, weight: float) -> Objective:
    """The matching loss of pixels and ``weight`` times their total variation."""

    def objective(
        variables: Tensors, labels: Tensor, observed: Tensors
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        images = variables["start"]
        matching = loss(images, labels, observed)
        return matching + weight * total_variation(images), (images, matching)

    return objective
