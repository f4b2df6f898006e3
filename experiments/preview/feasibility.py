"""A traffic light of an exact attack, and what decides on its colour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Literal, TypeAlias

from torch import nn

from experiments.preview.replies import Reply
from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.tasks.base import Task
from fedsim.types import Rows, Tensors

Colour: TypeAlias = Literal["green", "amber", "red"]


@dataclass(frozen=True, slots=True)
class Light:
    """What an exact attack on the replies of a cell comes up against.

    Attributes:
        colour: green where nothing is in the way, red where the attack cannot work, amber where it
            works on some replies or in part.
        what: what is counted in each reply.
        counts: one for each reply that was looked at.
        limit: the largest count that the attack takes; None where no number decides.
        reason: why it is not green.
    """

    attack: str
    colour: Colour
    what: str
    counts: tuple[int, ...]
    limit: int | None
    reason: str = ""

    @property
    def number(self) -> str:
        """``9 (4 to 23) of 381``: median, range and limit."""
        low, high = min(self.counts), max(self.counts)
        spread = "" if low == high else f" ({low} to {high})"
        of = "" if self.limit is None else f" of {self.limit}"
        return f"{median(self.counts):g}{spread}{of}"

    def text(self) -> str:
        """One line."""
        line = f"{self.attack:<15}{self.colour:<7}{self.what} {self.number}"
        return f"{line}: {self.reason}" if self.reason else line


@dataclass(frozen=True)
class Lamp:
    """A cell whose model and first replies are looked at, before anything is simulated."""

    config: CellConfig
    task: Task
    private: Rows
    weights: Tensors
    replies: tuple[Reply, ...]

    @cached_property
    def network(self) -> nn.Module:
        """The first model in eval mode; what the clients freeze needs no gradient."""
        network = self.task.model(self.weights).eval()
        build_chain(self.config.defense, "defense").on_model(network)
        return network

    @cached_property
    def sent(self) -> frozenset[str]:
        """The parameters that clients send."""
        return frozenset(k for k, p in self.network.named_parameters() if p.requires_grad)

    @cached_property
    def examples(self) -> tuple[int, ...]:
        """In each reply."""
        return tuple(len(reply.rows) for reply in self.replies)

    @cached_property
    def dropout(self) -> bool:
        """Whether masks change what a layer gets."""
        parts = [part for part in self.network.modules() if isinstance(part, nn.Dropout)]
        return self.config.federation.train_mode and any(part.p > 0 for part in parts)

    def dimmed(self, light: Light) -> Light:
        """Amber instead of green, where the update is not one exact gradient."""
        if light.colour != "green":
            return light
        run = self.config.federation
        if lost := sorted(build_chain(self.config.defense, "defense").distortions - {"scale"}):
            what = " and ".join(lost)
            reason = f"the defense leaves no exact gradient ({what})"
        elif run.protocol == "fedavg" and run.optimizer in ("adam", "adamw"):
            reason = f"an update by {run.optimizer} is no gradient"
        elif (steps := max(reply.steps for reply in self.replies)) > 1:
            reason = f"the update sums {steps} steps"
        elif self.dropout and light.attack != "embedding_rows":
            reason = "dropout is on, and its masks are not known"
        else:
            return light
        return replace(light, colour="amber", reason=reason)

    def light(
        self, attack: str, what: str, counts: tuple[int, ...], limit: int, more: str = ""
    ) -> Light:
        """Coloured by how many counts are within the limit."""
        fitting = sum(count <= limit for count in counts)
        if fitting == len(counts):
            return Light(attack, "amber" if more else "green", what, counts, limit, more)
        reason = f"{len(counts) - fitting} of {len(counts)} replies hold more"
        return Light(attack, "amber" if fitting else "red", what, counts, limit, reason)
