"""Feasibility of an exact attack on the replies of a cell, judged before any simulation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal, TypeAlias

from torch import nn

from fedsim.knowledge import MULTIPLES
from fedsim.models.layers import has_dropout
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Colour: TypeAlias = Literal["green", "amber", "red"]


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The verdict on an exact attack against the replies of a cell.

    Attributes:
        colour: green if nothing is in the way, red if the attack cannot work, amber if it works on
            some replies, in part or without proof.
        what: the quantity that is counted in each reply.
        counts: one for each reply that was examined.
        limit: the largest count that the attack can handle; None if no number decides.
        reason: why the colour is not green; empty if it is.
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

    The private examples serve whoever plans the experiment to count tokens and examples; no guess
    is made from them.

    Attributes:
        task: what the clients train.
        weights: of the first broadcast.
        network: holds these weights, in eval mode; parameters that clients freeze have
            ``requires_grad = False``.
        examples: number of examples in each reply, summed over the clients of a cohort.
        batches: yields the examples of each reply in turn, encoded on demand.
        example: a single example; for texts a short one.
        steps: largest number of local steps in a reply.
        optimizer: of clients that send weights; None if they send gradients.
        distortions: the ways in which the defense changes an update, as ``Defense.distortions``.
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
        """Number of tokens in each reply that leave a trace in the gradient."""
        return tuple(sum(map(len, lines)) for lines in self._texts)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Number of distinct pairs of token and position in each reply."""
        return tuple(len({p for line in lines for p in enumerate(line)}) for lines in self._texts)

    @cached_property
    def _texts(self) -> list[list[list[int]]]:
        """Token ids of each text of each reply, without those that leave no trace."""
        # The last token of a causal model predicts nothing and leaves no trace.
        unseen = 1 if self.task.spec.kind == "language-modelling" else 0
        texts = []
        for batch in self.batches():
            assert batch.mask is not None
            pairs = zip(batch.inputs.tolist(), (batch.mask.sum(1) - unseen).tolist(), strict=True)
            texts.append([ids[:length] for ids, length in pairs])
        return texts

    def judge(
        self,
        what: str,
        counts: tuple[int, ...],
        limit: int,
        partly: str = "",
        *,
        minds_dropout: bool = True,
    ) -> Feasibility:
        """The verdict from how many counts are within the limit, and how exact the updates are.

        Args:
            what: the quantity that is counted in each reply.
            counts: one for each reply.
            limit: the largest count that the attack can handle.
            partly: why the attack finds only a part even within the limit; empty if it finds all.
            minds_dropout: whether unknown dropout masks keep the attack from being exact.
        """
        fitting = sum(count <= limit for count in counts)
        if fitting < len(counts):
            reason = f"{len(counts) - fitting} of {len(counts)} replies hold more"
            return Feasibility("amber" if fitting else "red", what, counts, limit, reason)
        reason = partly or self._inexact(minds_dropout=minds_dropout)
        return Feasibility("amber" if reason else "green", what, counts, limit, reason)

    def _inexact(self, *, minds_dropout: bool) -> str:
        """Why an update is not a single exact gradient; empty if it is."""
        if lost := sorted(self.distortions - {"scale"}):
            return f"the defense leaves no exact gradient ({' and '.join(lost)})"
        if self.optimizer not in MULTIPLES:
            return f"an update by {self.optimizer} is not a gradient"
        if self.steps > 1:
            return f"the update sums {self.steps} steps"
        if minds_dropout and self.train_mode and has_dropout(self.network):
            return "dropout is on, and its masks are unknown"
        return ""
