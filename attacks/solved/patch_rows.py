"""The image of a vision transformer in closed form, from its position rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.labels import find_head, infer_label
from attacks.observed.replay import Replay, replay
from attacks.solved.cuts import CUTS
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.vit import ViT
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_PLACES, _EMBED = "positions", "embed.weight"


@dataclass(frozen=True)
class PatchRows(Attack):
    """Recover the image of a single example from the gradients of positions and patch layer.

    APRIL (Lu et al., CVPR 2022) starts from the same fact: row ``t`` of the position gradient is
    the loss gradient ``delta_t`` at token ``t``. We differ in the second step: their identity
    yields the input of the first attention, if there is neither normalisation nor a skip
    connection. Here the patch layer is solved instead, whose gradient is ``sum_t delta_t x_t^T``
    over the pixels ``x_t`` of each patch: for each place in a patch as many equations as the width,
    in as many unknowns as patches.

    Confidence is ``certified`` if the image, with the class inferred from the head, reproduces the
    observed gradient up to rounding, and ``guess`` otherwise. The objective is the relative error
    of that gradient at its best scale.

    Attributes:
        tolerance: relative error of a float32 gradient that counts as rounding.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-4

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Whether each reply holds one image of a ViT whose positions and patch layer are sent."""
        what, counts = "examples", prospect.examples
        try:
            _check(prospect.network, prospect.sent)
        except CannotAttack as error:
            return Feasibility("red", what, counts, 1, error.reason)
        return prospect.judge(what, counts, 1)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """One image; nothing is random."""
        del rng
        if (count := observation.knowledge.num_examples) != 1:
            raise CannotAttack(
                f"the batch holds {count} examples, and position rows add up over them",
                "Set federation.batch_size = 1, or choose an attack that searches.",
            )
        model = replay(observation, task, job.device, torch.float64)
        network = _check(model.network, observation.received)
        update = {name: value.to(job.device) for name, value in observation.update().items()}
        if not all(value.isfinite().all() for value in update.values()):
            raise CannotAttack(
                "the update holds NaN or infinite values", "Lower the client's learning rate."
            )
        image = solve(update[_PLACES][1:], update[_EMBED], network.patch, task.spec.input_shape)
        label = infer_label(update, find_head(network))
        guess = Batch(image[None].clamp(0, 1).float(), torch.tensor([label], device=job.device))
        error = _error(model, guess, update)
        return Reconstruction(
            guess,
            objective=error,
            confidence=("certified" if error <= self.tolerance else "guess",),
        )


def _check(network: nn.Module, sent: frozenset[str] | Tensors) -> ViT:
    """The network, if its image can be solved for."""
    if not isinstance(network, ViT):
        raise CannotAttack(
            f"{type(network).__name__} has no table of positions added to patches",
            "Choose the model 'vit', or an attack that searches.",
        )
    head = find_head(network)
    if absent := [n for n in (_PLACES, _EMBED, head.weight, str(head.bias)) if n not in sent]:
        raise CannotAttack(
            f"the client does not send {absent[0]!r} (frozen), and the image is solved from it",
            "Freeze fewer layers, or choose an attack that searches.",
        )
    return network


def solve(slopes: Tensor, gradient: Tensor, patch: int, shape: tuple[int, ...]) -> Tensor:
    """The image of this shape whose patches explain the gradient of the patch layer.

    Args:
        slopes: loss gradients at the patch tokens, float64 ``(patch, width)``.
        gradient: of the layer's weight, float64 ``(width, value)``.
        patch: height and width of a patch in pixels.
        shape: ``(channel, height, width)``.

    Raises:
        CannotAttack: there are more patches than independent equations.
    """
    values = torch.linalg.svdvals(slopes)
    rank = int((values > CUTS.patch_singular_value * values[0]).sum())
    if rank < len(slopes):
        raise CannotAttack(
            f"the position rows of {len(slopes)} patches have rank {rank}",
            "Each patch needs an independent row: take a wider model, smaller images, or an attack "
            "that searches.",
        )
    pixels = torch.linalg.lstsq(slopes.T, gradient).solution
    padded = tuple(-(-length // patch) * patch for length in shape[1:])
    image = F.fold(pixels.T[None], padded, patch, stride=patch)[0]
    return image[:, : shape[1], : shape[2]]


def _error(model: Replay, guess: Batch, update: Tensors) -> float:
    """``||G - a g|| / ||G||`` at the best scale ``a > 0``, 1 if there is none."""
    made = model.gradient(Batch(guess.inputs.double(), guess.labels))
    one, other = (
        torch.cat([part[name].detach().flatten() for name in made]) for part in (made, update)
    )
    both = float(one @ other)
    square = max(0.0, 1 - both**2 / float(one.square().sum() * other.square().sum()))
    return square**0.5 if both > 0 else 1.0
