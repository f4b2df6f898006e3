"""Interface of a defense at the client. A hook does nothing unless a defense overrides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import nn

from fedsim.accountant import Schedule
from fedsim.defenses.encoding import Encoding
from fedsim.defenses.strength import Strength
from fedsim.types import Batch, Tensors

DefenseStage: TypeAlias = Literal["sample", "client"]
Distortion: TypeAlias = Literal[
    "scale",
    "noise",
    "sparsity",
    "sign",
    "rounding",
    "truncation",
    "projection",
    "orthogonal",
    "inputs",
]
"""Losses of an update: its length; its exact values, to noise, zeros, signs, rounding or a cap on
magnitudes; a linear
part, which the surrogate or ``comparable`` leaves out, too; all but each tensor's length, in an
orthogonal direction; or that the examples were changed before it was computed."""
DefenseFamily: TypeAlias = Literal[
    "baseline", "deployed", "published", "compression", "DP", "architecture", "added"
]
"""Where a defense comes from: ``deployed`` ones ship with a platform, ``published`` ones were
proposed against inversion, ``added`` ones belong to another package."""
Unit: TypeAlias = Literal["example", "update"]
"""What epsilon protects: one example of a client, or everything that it sends in a round."""


class Step(NamedTuple):
    """One local step, for defenses that look at the model and its examples.

    Attributes:
        model: at the weights before the step; a hook leaves them as they are.
        batch: the examples, after ``on_batch``.
        loss: the task's, of the model and a batch.
    """

    model: nn.Module
    batch: Batch
    loss: Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class Gaussian:
    """Clipping to a norm, and Gaussian noise of one standard deviation on every coordinate.

    Attributes:
        std: standard deviation of the noise; None if a budget sets it, until ``Defense.fit`` does.
        clip: largest Euclidean norm of what the noise covers; infinite without clipping.
        reach: largest distance between the results of neighbours, in units of ``clip``.
        delta: probability with which an epsilon that is claimed may be exceeded.
    """

    std: float | None
    clip: float = math.inf
    reach: float = 1.0
    delta: float = 0.0


@dataclass(frozen=True)
class Defense:
    """A defense that changes nothing; every other defense overrides some of its hooks.

    The hooks are called in the order in which they are defined; a chain calls each hook of all its
    defenses in turn. For one step on the examples of ``on_batch``, with single gradients g_1 to
    g_B,

        gradient = on_step(on_sum(on_gradient(g_1) + ... + on_gradient(g_B)) / B).

    Under FedSGD the client sends ``on_update(gradient)``. Under FedAvg it sends
    ``sent - on_update(sent - trained)``, ``trained`` being the weights after its local steps.

    Attributes:
        title: its name in tables and figures; empty for its name in experiment files, with spaces.
        family: where it comes from.
        run_by: who runs it, and which product or code has it.
        known: what an adaptive attacker uses of it, in a sentence.
        claim: what its paper's abstract says of inversion; empty if nothing.
        loses: its ``distortions``, where they do not depend on its options.
        tuned_by: its ``strength``, where that does not.

    Example:
        A chain of one defense, by the name and the options of an experiment file:

        >>> import torch
        >>> from fedsim.defenses import DEFENSES
        >>> prune = DEFENSES["prune"](fraction=0.5)
        >>> update = {"weight": torch.tensor([3.0, -1.0, 0.5, 2.0])}
        >>> prune.on_update(update, torch.Generator())["weight"].tolist()
        [3.0, 0.0, 0.0, 2.0]
        >>> sorted(prune.distortions)
        ['sparsity']
    """

    title: ClassVar[str] = ""
    family: ClassVar[DefenseFamily] = "added"
    run_by: ClassVar[str] = "the client"
    known: ClassVar[str] = "Its options, and what its members say of it."
    claim: ClassVar[str] = ""
    loses: ClassVar[frozenset[Distortion]] = frozenset()
    tuned_by: ClassVar[Strength | None] = None

    def fit(self, schedule: Schedule) -> Defense:
        """The same defense, its noise set for a client with this schedule."""
        del schedule
        return self

    def on_model(self, model: nn.Module) -> None:
        """Change the client's model, given in its training mode; frozen parameters are not sent."""

    def on_statistics(self, model: nn.Module) -> None:
        """Refuse that the model's running batch statistics are sent; called if they would be."""

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        """The examples to train on instead of ``batch``, at the weights of ``model``."""
        del model, rng
        return batch

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """Change the gradient of one example, before the mean over the batch is taken."""
        del rng
        return gradient

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """Change the sum of a step's single gradients, before it is divided by their number."""
        del rng
        return total

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """Change the mean gradient of a step, given the model and the examples that it is of."""
        del step, rng
        return gradient

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Change the update that the client sends."""
        del rng
        return update

    def surrogate(self, update: Tensors) -> Tensors:
        """Differentiable approximation of the defense, for adaptive attackers."""
        return update

    def comparable(self, guess: Tensors, received: Tensors) -> tuple[Tensors, Tensors]:
        """What of a guess's update and of the received one is equal at the truth, up to a scale.

        Has to run under ``torch.func``; a slope is asked for by ``guess`` alone.
        """
        return guess, received

    def recover(self, batch: Batch, model: nn.Module) -> Batch:
        """Examples of which ``on_batch`` makes these, as far as an attacker can tell."""
        del model
        return batch

    def sharp(self, width: float) -> Defense:
        """The same defense, a surrogate of signs being this narrow in median magnitudes."""
        del width
        return self

    def encode(self, packed: Encoding) -> Encoding:
        """Packing of the update after this defense, given the packing before it.

        Noise fills all bits. Zeros are left out, and the others come with indices.
        """
        if "noise" in self.distortions:
            return Encoding()
        return replace(packed, sparse=True) if "sparsity" in self.distortions else packed

    def slack(self, received: Tensors) -> Tensors:
        """Largest distance of each coordinate from its received value, where rounding bounds it.

        Broadcasts against ``received``. Meaningful only if ``distortions`` contains ``rounding``.
        """
        return {name: torch.zeros_like(value) for name, value in received.items()}

    def epsilon_after(self, spent: Schedule) -> float | None:
        """Epsilon that a client has spent after this schedule; None if there is no ``unit``."""
        del spent
        return None

    def released(self, spent: Schedule) -> Sequence[tuple[int, float, float]]:
        """The Gaussian mechanisms of a schedule, seen in one or more ways, if it claims epsilon.

        Each is their number, the chance with which one samples a unit, and their noise multiplier,
        in units of what one unit adds: where neighbours have one in place of another, up to twice.
        """
        del spent
        return ()

    def stays(self, name: str) -> bool:
        """Whether that parameter never leaves the client, which goes on from its own value."""
        del name
        return False

    @property
    def overclaims(self) -> str:
        """Why its options protect less than they say, a clause; empty if nothing is wrong."""
        return ""

    @property
    def remembers(self) -> bool:
        """True if the client adds to its update what was not sent of the ones before it."""
        return False

    @property
    def is_personal(self) -> bool:
        """True if ``stays`` is overridden."""
        return type(self).stays is not Defense.stays

    @property
    def distortions(self) -> frozenset[Distortion]:
        """Distortions that an adaptive attacker has to allow for; empty if nothing is distorted."""
        return self.loses

    @property
    def gaussian(self) -> Gaussian | None:
        """The noise, and its clipping, if the defense is nothing else; None for any other.

        It acts where the defense does: on each gradient, their sum, or the update.
        """
        return None

    @property
    def at_server(self) -> Gaussian | None:
        """What the server is asked to do to each update and their mean, after it has seen them."""
        return None

    @property
    def keeps_largest(self) -> bool:
        """True if it zeroes the smallest coordinates, as its surrogate does, and nothing else."""
        return False

    @property
    def sends_signs(self) -> bool:
        """True if every coordinate that it gives is -1, 0 or 1."""
        return False

    @property
    def unit(self) -> Unit | None:
        """The unit that epsilon protects; None if the defense does not claim to be private."""
        return None

    @property
    def strength(self) -> Strength | None:
        """The option that makes it stronger; None if there is nothing to search."""
        return self.tuned_by

    @property
    def per_example(self) -> bool:
        """True if gradients are needed example by example, for ``on_gradient`` or ``on_sum``."""
        return type(self).on_gradient is not Defense.on_gradient or self.changes_sum

    @property
    def changes_sum(self) -> bool:
        """True if ``on_sum`` is overridden."""
        return type(self).on_sum is not Defense.on_sum

    @property
    def changes_step(self) -> bool:
        """True if ``on_step`` is overridden."""
        return type(self).on_step is not Defense.on_step

    @property
    def changes_update(self) -> bool:
        """True if ``on_update`` is overridden."""
        return type(self).on_update is not Defense.on_update


@dataclass(frozen=True)
class Repeatable(Defense):
    """A defense of the update that draws nothing, so that its surrogate is itself."""

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The surrogate; ``rng`` is not used."""
        del rng
        return self.surrogate(update)


@dataclass(frozen=True)
class StagedDefense(Defense):
    """A defense that transforms either each example's gradient or the whole update.

    Attributes:
        stage: ``sample`` transforms the gradient of each example before the mean is taken, as in
            Learning To Invert; ``client`` transforms what the client sends, as in DLG and LAMP.

    Example:
        >>> import torch
        >>> from fedsim.defenses import DEFENSES
        >>> sign, rng = DEFENSES["sign"](stage="sample"), torch.Generator()
        >>> update = {"weight": torch.tensor([3.0, -1.0])}
        >>> sign.on_gradient(update, rng)["weight"].tolist()
        [1.0, -1.0]
        >>> sign.on_update(update, rng)["weight"].tolist()
        [3.0, -1.0]
    """

    stage: DefenseStage = "client"

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Apply the defense to a gradient or an update."""
        raise NotImplementedError

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """Apply ``transform`` at stage ``sample``."""
        return self.transform(gradient, rng) if self.stage == "sample" else gradient

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Apply ``transform`` at stage ``client``."""
        return self.transform(update, rng) if self.stage == "client" else update

    @property
    def per_example(self) -> bool:
        """True at stage ``sample``."""
        return self.stage == "sample"

    @property
    def changes_update(self) -> bool:
        """True at stage ``client``."""
        return self.stage == "client"


@dataclass(frozen=True)
class NoDefense(Defense):
    """Sends the undefended update; the model, the batch and the update stay unchanged."""

    family: ClassVar[DefenseFamily] = "baseline"
    run_by: ClassVar[str] = "nobody"
    known: ClassVar[str] = "There is nothing to know."
