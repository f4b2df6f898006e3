"""From the sums of many rounds to the rows of single clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.observed.first_linear import find_first_linear
from attacks.observed.prior import prior_guess
from attacks.observed.separated import by_spans, by_updates, by_words, is_sum
from attacks.solved.closed_form import ClosedForm
from attacks.solved.embedding_rows import EmbeddingRows
from attacks.solved.spear import Spear
from attacks.span.span import Span
from fedsim.errors import CannotAttack
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import joined

OF: dict[str, type[Attack]] = {
    "spear": Spear,
    "closed_form": ClosedForm,
    "span": Span,
    "embedding_rows": EmbeddingRows,
}
"""The attacks on what was separated."""


@dataclass(frozen=True)
class Disaggregate(Attack):
    """Single clients' rows from the sums of many rounds, whose cohorts the server drew itself.

    A client that uses all its rows in every round leaves the same inputs in each of its cohorts.
    ``updates`` solves for the clients' updates, of which each sum is a known combination (So et al.
    2021, 2106.03328; Lam et al. 2021): exact while the weights stay, and off by as much as they
    move. ``spans`` is exact whatever they do, and needs fewer rounds: the rows of a sum's gradient
    at the first linear layer span the inputs of its clients, and two cohorts that share one client
    share that client's inputs alone. Once all clients of a cohort are known by their spans, the
    sum's gradient has but one decomposition among them. ``words`` asks of each row of the word
    table which clients were in every sum that moved it, and reads those that one client alone
    touches (2508.04285), see ``by_words``. What is separated is then attacked as if its client had
    sent it. Rows of clients that no sum gives away yet are guessed blindly, as ``prior_only`` does.

    A sum in round r is attacked with those of rounds 1 to r. A certificate is that of the attack on
    the separated update.

    Attributes:
        of: the attack on a separated update.
        by: what is separated; ``span`` needs ``updates``, and ``words`` needs ``embedding_rows``.
    """

    grouping: ClassVar[Grouping] = "whole_run"

    of: Literal["spear", "closed_form", "span", "embedding_rows"] = "spear"
    by: Literal["spans", "updates", "words"] = "spans"

    def __post_init__(self) -> None:
        """Check the options."""
        if self.by == "words" and self.of != "embedding_rows":
            raise ValueError("by: words are told by embedding_rows. Set of = 'embedding_rows'.")

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The rows of each cohort, as far as the rounds up to its own tell them apart.

        Raises:
            CannotAttack: no observation is a sum of known clients with the same rows in each round.
        """
        inner = OF[self.of]()
        order = sorted(range(len(observations)), key=lambda i: observations[i].key)
        sums = [i for i in order if is_sum(observations[i])]
        if not sums:
            raise CannotAttack(
                "no reply is a sum over known clients that use all their rows in each round",
                "Set federation.secure_aggregation, and federation.batch_size to a client's rows.",
            )
        rows: dict[int, Reconstruction] = {}
        guesses: dict[int, Reconstruction] = {}
        for round_ in sorted({observations[i].key.round for i in order}):
            known = [observations[i] for i in sums if observations[i].key.round <= round_]
            here = [i for i in order if observations[i].key.round == round_]
            if self.by == "words":  # each round tells more of the same clients
                rows.clear()
            if {client for seen in known for client in seen.knowledge.members} - rows.keys():
                separated = self._separated(known, task, rngs[here[0]], job)
                for client in separated.keys() - rows.keys():
                    rows[client] = inner.guess(separated[client], task, rngs[here[0]], job)
            for i in here:
                guesses[i] = _together(observations[i], rows, task, job)
        return [guesses[i] for i in range(len(observations))]

    def _separated(
        self, sums: Sequence[Observation], task: Task, rng: torch.Generator, job: Job
    ) -> dict[int, Observation]:
        if self.by == "updates":
            return by_updates(sums)
        network = task.model(sums[0].sent, device=job.device)
        if self.by == "words":
            return by_words(sums, network, job.device)
        network = network.double()
        return by_spans(sums, find_first_linear(network, task, rng), job.device)


def _together(
    seen: Observation, rows: dict[int, Reconstruction], task: Task, job: Job
) -> Reconstruction:
    """The rows of a cohort's clients, and blind guesses for those that are missing."""
    single = [client for client in seen.knowledge.members if client in rows]
    parts = [rows[client] for client in single]
    blind = prior_guess(seen, task, job)
    missing = max(0, len(blind) - sum(len(part.guess) for part in parts))
    levels: list[Certificate] = []
    for part in parts:
        levels += part.confidence or ["guess"] * len(part.guess)
    levels += ["guess"] * missing
    batch = joined([*(part.guess for part in parts), blind[slice(len(blind) - missing, None)]])
    named = ", ".join(map(str, single)) or "no client"
    return Reconstruction(
        batch,
        confidence=tuple(levels),
        note=f"told apart: {named} of the cohort's {len(seen.knowledge.members)}",
    )
