"""Whether an exact attack can work on what replies hold, before anything is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Literal, TypeAlias

from torch import nn

from fedsim.models.mode import has_dropout
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Colour: TypeAlias = Literal["green", "amber", "red"]


@dataclass(frozen=True, slots=True)
class Feasibility:
    """What an exact attack on the replies of a cell comes up against.

    Attributes:
        colour: green where nothing is in the way, red where the attack cannot work, amber where it
            works on some replies or in part.
        what: what is counted in each reply.
        counts: one for each reply that was looked at.
        limit: the largest count that the attack takes; None where no number decides.
        reason: why it is not green.
    """

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

    def text(self, attack: str) -> str:
        """One line about the attack of this name."""
        line = f"{attack:<15}{self.colour:<7}{self.what} {self.number}"
        return f"{line}: {self.reason}" if self.reason else line


@dataclass(frozen=True)
class Prospect:
    """The model and the first replies of a cell that is not simulated yet.

    The private examples are there to be counted by whoever plans the experiment; no guess comes of
    them.

    Attributes:
        task: what the clients train.
        weights: of the first broadcast.
        network: with these weights, in eval mode; what the clients freeze needs no gradient.
        examples: in each reply, of all clients of a cohort.
        batches: gives the examples of one reply after another, encoded when they are asked for.
        example: a single one; of texts a short one.
        steps: most local steps that a reply sums up.
        optimizer: of clients that send weights; None where they send gradients.
        distortions: what the defense takes from an update, as ``Defense.distortions``.
        train_mode: whether dropout and batch statistics are on at the clients.
    """

    task: Task
    weights: Tensors
    network: nn.Module
    examples: tuple[int, ...]
    batches: Callable[[], Iterable[Batch]]
    example: Batch
    steps: int = 1
    optimizer: str | None = None
    distortions: frozenset[str] = frozenset()
    train_mode: bool = False

    @cached_property
    def sent(self) -> frozenset[str]:
        """The parameters that clients send."""
        return frozenset(k for k, p in self.network.named_parameters() if p.requires_grad)

    @property
    def tokens(self) -> tuple[int, ...]:
        """In each reply of texts, those that leave a trace."""
        return tuple(sum(map(len, lines)) for lines in self._texts)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Different pairs of a token and its position in each reply of texts."""
        return tuple(len({p for line in lines for p in enumerate(line)}) for lines in self._texts)

    @cached_property
    def _texts(self) -> list[list[list[int]]]:
        """Of each reply the token ids of each text, as far as they leave a trace."""
        # A causal model's last token predicts nothing, and leaves no trace.
        unseen = 1 if self.task.spec.kind == "language-modelling" else 0
        found = []
        for batch in self.batches():
            assert batch.mask is not None
            pairs = zip(batch.inputs.tolist(), (batch.mask.sum(1) - unseen).tolist(), strict=True)
            found.append([ids[:length] for ids, length in pairs])
        return found

    def judge(
        self,
        what: str,
        counts: tuple[int, ...],
        limit: int,
        partly: str = "",
        *,
        minds_dropout: bool = True,
    ) -> Feasibility:
        """Coloured by how many counts are within the limit, and by how exact the updates are.

        Args:
            what: what is counted in each reply.
            counts: one for each reply.
            limit: the largest count that the attack takes.
            partly: why it finds only a part even then; empty where it finds everything.
            minds_dropout: whether unknown masks keep it from being exact.
        """
        fitting = sum(count <= limit for count in counts)
        if fitting == len(counts):
            found = Feasibility("amber" if partly else "green", what, counts, limit, partly)
            return self.qualified(found, minds_dropout=minds_dropout)
        reason = f"{len(counts) - fitting} of {len(counts)} replies hold more"
        return Feasibility("amber" if fitting else "red", what, counts, limit, reason)

    def qualified(self, found: Feasibility, *, minds_dropout: bool = True) -> Feasibility:
        """Amber instead of green, where an update is not one exact gradient."""
        if found.colour != "green":
            return found
        if lost := sorted(self.distortions - {"scale"}):
            reason = f"the defense leaves no exact gradient ({' and '.join(lost)})"
        elif self.optimizer in {"adam", "adamw"}:
            reason = f"an update by {self.optimizer} is no gradient"
        elif self.steps > 1:
            reason = f"the update sums {self.steps} steps"
        elif minds_dropout and self.train_mode and has_dropout(self.network):
            reason = "dropout is on, and its masks are not known"
        else:
            return found
        return replace(found, colour="amber", reason=reason)
