"""What a defense may do at the client. Every hook does nothing unless a defense overrides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import nn

from fedsim.accountant import Schedule
from fedsim.defenses.encoding import Encoding
from fedsim.types import Batch, Tensors

DefenseStage: TypeAlias = Literal["sample", "client"]
Distortion: TypeAlias = Literal["scale", "noise", "sparsity", "sign", "rounding"]
"""What is lost of an update: its length, or exact values, to noise, zeros, signs or rounding."""
Unit: TypeAlias = Literal["example", "update"]
"""What epsilon protects: one example of a client, or all that it sends in a round."""


@dataclass(frozen=True)
class Defense:
    """A no-op. The hooks are called in this order; a chain calls each hook in the chain's order.

    Under FedSGD the update is the gradient of the batch; under FedAvg it is
    ``sent - trained weights``, and the hook's result is subtracted from ``sent`` again.

    Attributes:
        title: its name in tables and figures; empty for that in experiment files, with spaces.
    """

    title: ClassVar[str] = ""

    def fit(self, schedule: Schedule) -> Defense:
        """The defense of a client whose rows are drawn from so often."""
        del schedule
        return self

    def on_model(self, model: nn.Module) -> None:
        """Change the client's model, in the mode it trains in; what is frozen is not sent."""

    def on_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        """The examples that are trained on instead of ``batch``."""
        del rng
        return batch

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """Change one example's gradient, before the mean over the batch is taken."""
        del rng
        return gradient

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """Change the sum of a step's single gradients, before it is divided by their number."""
        del rng
        return total

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Change the update that the client sends."""
        del rng
        return update

    def surrogate(self, update: Tensors) -> Tensors:
        """A differentiable stand-in for the defense, for an adaptive attacker."""
        return update

    def encode(self, packed: Encoding) -> Encoding:
        """How the update is packed, given how it was before this defense."""
        return packed

    def slack(self, received: Tensors) -> Tensors:
        """How far each coordinate may lie from what was received, where rounding bounds it.

        Broadcasts against ``received``; for ``rounding`` among the distortions.
        """
        return {name: torch.zeros_like(value) for name, value in received.items()}

    def epsilon_after(self, spent: Schedule) -> float | None:
        """Epsilon of what a client has done, for a defense that has a ``unit``; else None."""
        del spent
        return None

    @property
    def distortions(self) -> frozenset[Distortion]:
        """What an adaptive attacker has to allow for; empty where values arrive as they are."""
        return frozenset()

    @property
    def unit(self) -> Unit | None:
        """What epsilon is about; None where nothing private is claimed."""
        return None

    @property
    def per_example(self) -> bool:
        """Whether examples must be taken one by one, since ``on_gradient`` or ``on_sum`` works."""
        return type(self).on_gradient is not Defense.on_gradient or self.changes_sum

    @property
    def changes_sum(self) -> bool:
        """Whether ``on_sum`` does anything."""
        return type(self).on_sum is not Defense.on_sum

    @property
    def changes_update(self) -> bool:
        """Whether ``on_update`` does anything."""
        return type(self).on_update is not Defense.on_update


@dataclass(frozen=True)
class StagedDefense(Defense):
    """A defense that is one function of an update, applied per example or to the whole update.

    Attributes:
        stage: ``sample`` transforms each example's gradient before the mean (as Learning To Invert
            does), ``client`` what the client sends (as DLG and LAMP do).
    """

    stage: DefenseStage = "client"

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The defense itself."""
        raise NotImplementedError

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """``transform`` if the stage is ``sample``."""
        return self.transform(gradient, rng) if self.stage == "sample" else gradient

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """``transform`` if the stage is ``client``."""
        return self.transform(update, rng) if self.stage == "client" else update

    @property
    def per_example(self) -> bool:
        """Whether the stage is ``sample``."""
        return self.stage == "sample"

    @property
    def changes_update(self) -> bool:
        """Whether the stage is ``client``."""
        return self.stage == "client"
