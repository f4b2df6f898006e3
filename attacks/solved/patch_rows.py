"""The image of a vision transformer in closed form, from its position rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import nn

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.labels import find_head
from attacks.observed.replay import gradient_or_multiple, replay
from attacks.observed.seen_input import range_note
from attacks.observed.single_target import scale_note, single_target
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import certificate
from attacks.solved.cuts import CUTS
from attacks.solved.patches import Patches
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.network import copied
from fedsim.tasks.base import Task
from fedsim.types import Batch


@dataclass(frozen=True)
class PatchRows(Attack):
    """Recover the image of a single example from the gradients of positions and patch layer.

    APRIL (Lu et al., CVPR 2022) starts from the same fact: row ``t`` of the position gradient is
    the loss gradient ``delta_t`` at token ``t``. We differ in the second step: their identity
    yields the input of the first attention, if there is neither normalisation nor a skip
    connection. Here the patch layer is solved instead, whose gradient is ``sum_t delta_t x_t^T``
    over the pixels ``x_t`` of each patch: for each place in a patch as many equations as the width,
    in as many unknowns as patches.

    The layer and the table are known by their gradients, see ``attacks.solved.patches``.

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
                "Set federation.batch_size = 1, or choose an attack that searches.",
            )
        model = replay(observation, task, job.device, torch.float64)
        patches = _patches(model.network, task, observation.received)
        received, scaled = gradient_or_multiple(observation)
        gradient = {name: value.to(job.device) for name, value in received.items()}
        if not all(value.isfinite().all() for value in gradient.values()):
            raise CannotAttack(
                "the update holds NaN or infinite values", "Lower the client's learning rate."
            )
        image = patches.solve(gradient, CUTS.patch_singular_value)[None].float()
        target = single_target(model.network, task, gradient, find_head(model.network), image)
        batch = Batch(image, target.target.to(image.device))
        double = replace(batch, inputs=image.double())
        proof = prove(observation, task, double, [(patches.weight, patches.table)])
        notes = (scale_note(target.factor) if scaled else "", range_note(image, task))
        sharp = proof.error <= CUTS.solved_image
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
