"""The image of a vision transformer in closed form, from its position rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.calls import noted
from attacks.observed.labels import find_head
from attacks.observed.replay import gradient_or_multiple, replay
from attacks.observed.seen_input import range_note
from attacks.observed.single_target import scale_note, single_target, target_note
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import certificate
from attacks.solved.closed_form import SOLVED_IMAGE
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.network import copied
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_PATCH_SINGULAR_VALUE = 1e-7
"""Smallest singular value of the position rows, as a share of the largest, that is more than
rounding."""


@dataclass(frozen=True)
class PatchRows(Attack):
    """Recover the image of a single example from the gradients of positions and patch layer.

    APRIL (Lu et al., CVPR 2022) starts from the same fact: row ``t`` of the position gradient is
    the loss gradient ``delta_t`` at token ``t``. We differ in the second step: their identity
    yields the input of the first attention, if there is neither normalisation nor a skip
    connection. Here the patch layer is solved instead, whose gradient is ``sum_t delta_t x_t^T``
    over the pixels ``x_t`` of each patch: for each place in a patch as many equations as the width,
    in as many unknowns as patches.

    The layer and the table are known by their gradients, see ``attacks.solved.patch_rows``.

    Confidence is ``certified`` if the image, with the target and the factor that the head tells,
    reproduces the observed gradient up to rounding, and ``guess`` otherwise. The objective is the
    relative error of that gradient.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Whether each reply holds one image of a ViT whose positions and patch layer are sent."""
        what, counts = "examples", prospect.examples
        try:
            _patches(copied(prospect.network).double(), prospect.task, prospect.sent)
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
                "Choose an attack that searches; one image an update is federation.batch_size = 1.",
            )
        model = replay(observation, task, job.device, torch.float64)
        patches = _patches(model.network, task, observation.received)
        received, scaled = gradient_or_multiple(observation)
        gradient = {name: value.to(job.device) for name, value in received.items()}
        if not all(value.isfinite().all() for value in gradient.values()):
            raise CannotAttack(
                "the update holds NaN or infinite values", "Lower the client's learning rate."
            )
        image = patches.solve(gradient, _PATCH_SINGULAR_VALUE)[None].float()
        target = single_target(model.network, task, gradient, find_head(model.network), image)
        batch = Batch(image, target.target.to(image.device))
        double = replace(batch, inputs=image.double())
        proof = prove(observation, task, double, [(patches.weight, patches.table)])
        scale = scale_note(target.factor) if scaled else ""
        notes = (scale, target_note(target), range_note(image, task))
        sharp = proof.error <= SOLVED_IMAGE
        return Reconstruction(
            batch,
            objective=proof.error,
            confidence=(certificate(proof, sharp=sharp),),
            note="; ".join(filter(None, notes)) if proof.holds and sharp else "",
        )


def _patches(network: nn.Module, task: Task, sent: Collection[str]) -> Patches:
    """The network's patch layer and positions, if what the image is solved from was sent."""
    patches, head = Patches.of(network, task), find_head(network)
    needed = (patches.table, patches.weight, head.weight, head.bias)
    if absent := [name for name in needed if name is not None and name not in sent]:
        raise CannotAttack(
            f"the client does not send {absent[0]!r} (frozen), and the image is solved from it",
            "Freeze fewer layers, or choose an attack that searches.",
        )
    return patches


_SAME = 1e-6
"""Relative difference of two gradients in float64 that are one; half and twice as much are, too."""
_NO_TABLE = "has no table of positions added to patches"
_SEARCH = "Choose the model 'vit', or an attack that searches."


@dataclass(frozen=True)
class Patches:
    """What a patch layer is given at each position, and where the positions' gradients stand.

    Attributes:
        weight: name of the layer's weight, ``(width, ...)``.
        table: name of the parameter whose rows are added to the outputs.
        first: number of rows before those of the patches, as of a class token.
        pixels: number of the pixel that each value is, from 1, int64 ``(patch, value)``; 0 for
            padding.
        scale: by which the pixel was multiplied, as by a normalisation, ``(patch, value)``.
        shift: what was added then, ``(patch, value)``.
        shape: of the image.
    """

    weight: str
    table: str
    first: int
    pixels: Tensor
    scale: Tensor
    shift: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, network: nn.Module, task: Task) -> Patches:
        """Found by what the network does: the class of neither matters.

        The first layer has to take the pixels, and the loss's gradient at its outputs has to be
        that at successive rows of a parameter, which is so where these are added to the outputs.

        Args:
            network: in float64.
            task: whose loss runs it.

        Raises:
            CannotAttack: there is no such layer, or no such table.
        """
        name = type(network).__name__
        layers = {key: part for key, part in network.named_modules() if isinstance(part, _LAYERS)}
        like, size = next(network.parameters()), torch.Size(task.spec.input_shape).numel()
        steps = torch.arange(1, size + 1).to(like) / (size + 1)
        # Black, white, and an image whose pixels are all different.
        probes = torch.stack([torch.zeros_like(steps), torch.ones_like(steps), steps])
        given: list[Tensor] = []
        with noted(layers) as calls:
            for probe in probes:
                calls.clear()
                batch = Batch(probe.view(1, *task.spec.input_shape), _targets(task, like))
                loss = task.loss(network, batch)
                given.append(calls[0].input.detach()[0] if calls else probe)
        if not calls:
            raise CannotAttack(f"{name} {_NO_TABLE}", _SEARCH)
        key, part, _, output = calls[0]
        shift, scale = given[0], given[1] - given[0]
        numbers = ((given[2] - shift) / scale * (size + 1)).where(scale != 0, 0)
        pixels = numbers.round().clamp(0, size)
        odd = (numbers - pixels).abs().max() > _SAME * size or given[0].dim() not in (2, 3)
        if odd:
            raise CannotAttack(f"{key!r} of {name} is not given the pixels one by one", _SEARCH)
        if isinstance(part, nn.Conv2d):
            pixels, scale, shift = (_unfolded(value, part) for value in (pixels, scale, shift))
        if not output.requires_grad:
            raise CannotAttack(
                f"{key!r} of {name} is frozen, and the image is solved from its gradient",
                "Freeze fewer layers, or choose an attack that searches.",
            )
        trained = [(k, p) for k, p in network.named_parameters() if p.requires_grad]
        parameters = {k: p for k, p in trained if p.shape[-1:] != ()}
        slopes, *others = torch.autograd.grad(
            loss, [output, *parameters.values()], allow_unused=True, materialize_grads=True
        )
        slopes = slopes[0].flatten(1).T if isinstance(part, nn.Conv2d) else slopes[0]
        table = _added(slopes, dict(zip(parameters, others, strict=True)))
        if table is None:
            raise CannotAttack(f"{name} {_NO_TABLE}", _SEARCH)
        weight = f"{key}.weight" if key else "weight"
        return cls(weight, *table, pixels.long(), scale, shift, task.spec.input_shape)

    def solve(self, gradient: Tensors, smallest: float) -> Tensor:
        """The image whose patches explain the gradient of the patch layer.

        Args:
            gradient: float64, of the table and of the layer's weight.
            smallest: singular value of the table's rows that is more than rounding, as a share of
                the largest.

        Raises:
            CannotAttack: there are more patches than independent equations.
        """
        weight, count = gradient[self.weight].flatten(1), len(self.pixels)
        rows = gradient[self.table].reshape(-1, len(weight))[self.first : self.first + count]
        values = torch.linalg.svdvals(rows)
        rank = int((values > smallest * values[0]).sum())
        if rank < count:
            raise CannotAttack(
                f"the position rows of {count} patches have rank {rank}",
                "Each patch needs an independent row: take a wider model, smaller images, or an "
                "attack that searches.",
            )
        given = torch.linalg.lstsq(rows.T, weight).solution
        pixels = ((given - self.shift) / self.scale).where(self.pixels > 0, 0)
        size = torch.Size(self.shape).numel()
        total = given.new_zeros(2, size + 1)
        total[0].index_add_(0, self.pixels.flatten(), pixels.flatten())
        total[1].index_add_(0, self.pixels.flatten(), torch.ones_like(pixels).flatten())
        # A pixel at the border that no patch covers is grey.
        image = torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), 0.5)
        return image[1:].view(self.shape)


_LAYERS = (nn.Conv2d, nn.Linear)


def _targets(task: Task, like: Tensor) -> Tensor:
    return task.any_labels(1).to(like.device)


def _unfolded(values: Tensor, layer: nn.Conv2d) -> Tensor:
    """``(channel, height, width)`` as the patches ``(patch, value)`` that a convolution takes."""
    padding = layer.padding if not isinstance(layer.padding, str) else 0
    patches: Tensor = F.unfold(
        values[None], layer.kernel_size, layer.dilation, padding, layer.stride
    )
    return patches[0].T


def _added(slopes: Tensor, gradients: Tensors) -> tuple[str, int] | None:
    """The parameter whose rows have these gradients, ``(patch, width)``, and the first of them."""
    count, width = slopes.shape
    if not bool(slopes.any()):
        return None
    for name, gradient in gradients.items():
        if gradient.shape[-1] != width or gradient.numel() < slopes.numel():
            continue
        rows = gradient.reshape(-1, width)
        for first in range(len(rows) - count + 1):
            error = (rows[first : first + count] - slopes).norm()
            if error <= _SAME * slopes.norm():
                return name, first
    return None
