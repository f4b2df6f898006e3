"""What every attack offers. An attack sees observations, a task and a job, never the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from attacks.feasibility import Feasibility, Prospect
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact, Knowledge
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Grouping: TypeAlias = Literal["each", "same_weights", "same_client"]
Trace: TypeAlias = tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """An attack's guess; never a score.

    Attributes:
        guess: examples in any order; text carries a mask, and its labels are classes ``(batch,)``
            (-1 where the attack does not guess them) or next-token targets.
        objective: the attacker's own final objective, lower is better; None where it has none.
        steps: optimisation steps taken.
        confidence: per guessed example, where the attack can tell.
        trace: (step, seconds, objective).
        expired: whether the time budget ended the attack before its schedule did.
        note: what a reader of the result has to know, in one line.
    """

    guess: Batch
    objective: float | None = None
    steps: int = 0
    confidence: tuple[Certificate, ...] | None = None
    trace: Trace = ()
    expired: bool = False
    note: str = ""


@dataclass
class Job:
    """What a worker gives to the attack that it runs.

    Attributes:
        device: where the attack has to compute.
        deadline: ``time.monotonic()`` at which the attack must return the best so far.
        report: called with (step, objective, text so far) now and then.
        auxiliary: reads the attacker's own rows; raises ``CannotAttack`` where there are none.
        keep: while preparing, stores a checkpoint in the place of the one before.
        resume: the checkpoint of a preparation that was cut off; empty where there is none.
        predicted: what ``attacks.observed.labels`` computed once for all observations of the same
            weights.
        prepared: what ``Attack.prepare`` returned.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    deadline: float = float("inf")
    report: Callable[[int, float, str], None] = lambda step, objective, text: None
    auxiliary: Callable[[], Batch] = lambda: _no_auxiliary()
    keep: Callable[[Tensors], object] = lambda tensors: None
    resume: Callable[[], Tensors] = dict
    predicted: dict[int, Tensor] = field(default_factory=dict)
    prepared: Tensors | None = None

    @property
    def expired(self) -> bool:
        """Whether the time budget is used up."""
        return time.monotonic() >= self.deadline


def _no_auxiliary() -> Batch:
    raise CannotAttack(
        "it needs auxiliary rows, which this threat model does not grant",
        "Name them under [auxiliary], and leave server_knows.auxiliary on.",
    )


@dataclass(frozen=True)
class Attack:
    """A frozen dataclass whose fields are the options.

    An attack overrides ``guess``, or ``reconstruct`` where a group is attacked together.

    Attributes:
        title: its name in tables and figures; empty for that in experiment files, with spaces.
        requires: facts it cannot do without, checked before any computation.
        modalities: what it can reconstruct.
        grouping: which observations one call gets: one, all of one broadcast model, or all of one
            client over the rounds.
        adaptive: whether it uses the declared defense's surrogate.
    """

    title: ClassVar[str] = ""
    requires: ClassVar[frozenset[Fact]] = frozenset()
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image", "text"})
    grouping: ClassVar[Grouping] = "each"

    @property
    def is_adaptive(self) -> bool:
        """Whether the attack uses the declared defense."""
        return bool(getattr(self, "adaptive", False))

    def abridged(self) -> tuple[Attack, float] | None:
        """The search with little before its first step, and how many such steps the whole makes.

        For an estimate of its time. None where no schedule says how long it takes.
        """
        return None

    def feasible(self, prospect: Prospect) -> Feasibility | None:
        """Whether it can work on replies such as these; None where nothing tells beforehand.

        For attacks that solve for the inputs: what they take has a limit that can be counted.
        """
        del prospect
        return None

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors | None:
        """What is learned once from auxiliary rows for given weights and defense, if anything."""
        del observation, task, job, seed
        return None

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """One observation's guess.

        Args:
            observation: what the server saw of one client in one round.
            task: the model architecture and loss; no private row is reachable from it.
            rng: a CPU generator; all that is drawn comes from it.
            job: device, deadline, progress, auxiliary rows and what was prepared.

        Raises:
            CannotAttack: this observation lacks what the attack needs; the job is skipped.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither guess nor reconstruct")

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One guess for each observation.

        Args:
            observations: a group as ``grouping`` says.
            task: as in ``guess``.
            rngs: one CPU generator for each observation, so that a guess does not depend on which
                observations share its group.
            job: as in ``guess``.

        Raises:
            CannotAttack: as in ``guess``; the others of the group are then attacked one by one.
        """
        pairs = zip(observations, rngs, strict=True)
        return [self.guess(observation, task, rng, job) for observation, rng in pairs]


def check_facts(attack: Attack, knowledge: Knowledge, task: Task) -> None:
    """Raise ``CannotAttack`` if the threat model or the task rules the attack out."""
    if task.modality not in attack.modalities:
        raise CannotAttack(
            f"it reconstructs {' and '.join(sorted(attack.modalities))}, "
            f"and this task is {task.modality}",
            "Choose another attack.",
        )
    if missing := knowledge.missing(attack.requires):
        raise CannotAttack(
            f"it needs {', '.join(missing)}, which the server does not know in this threat model",
            "Grant it under [server_knows], or choose another attack.",
        )
