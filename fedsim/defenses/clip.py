"""Clipping of the update: its length is hidden if it is too long, and nothing else."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.defenses.base import DefenseFamily, Distortion, Gaussian, Repeatable
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import cut
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Clip(Repeatable):
    """Scales the update down to a given norm if it is longer (as in McMahan et al. 2018).

    The client sends ``u * min(1, norm / |u|)``, ``|u|`` being the Euclidean norm over all tensors,
    and no noise is added. By itself this does not protect: directions, ratios, signs, ranks and
    spans survive, so attacks that use the cosine or the span lose nothing.

    Two parts of an attack have to allow for it. A squared distance uses the surrogate, which is the
    clipping itself. Counting the labels of a batch needs the scale, which an adaptive attack on
    images estimates; an oblivious one counts what the model expects instead of what the batch
    holds, unless labels are granted. To clip single examples without noise, use ``dp_sgd`` with
    ``noise_multiplier = 0``.

    Attributes:
        norm: largest Euclidean norm of the update over all tensors; under FedAvg, of the change of
            the weights.
    """

    title: ClassVar[str] = "clipping"
    family: ClassVar[DefenseFamily] = "baseline"
    run_by: ClassVar[str] = "the client; a part of every DP mechanism"
    known: ClassVar[str] = "The norm; only the length is lost."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"scale"})
    tuned_by: ClassVar[Strength] = Strength("norm", 100.0, 1e-3)

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def surrogate(self, update: Tensors) -> Tensors:
        """The clipping itself, which is differentiable."""
        return cut(update, self.norm)

    @property
    def gaussian(self) -> Gaussian:
        """The clipping alone: noise of no size."""
        return Gaussian(0.0, self.norm)
