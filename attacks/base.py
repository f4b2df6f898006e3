"""The interface of an attack, which sees observations, a task and a job, never the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from attacks.feasibility import Feasibility, Prospect
from fedsim.defenses.base import Distortion
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact, Knowledge
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Grouping: TypeAlias = Literal["each", "same_weights", "same_client", "whole_run"]
Inferred: TypeAlias = Literal["rows", "membership"]
Trace: TypeAlias = tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """An attack's guess; never a score.

    Attributes:
        guess: examples in any order; text carries a mask, and its labels are classes ``(batch,)``
            (-1 where the attack does not guess them) or next-token targets.
        objective: the attacker's own final objective, lower is better; None if it has none.
        steps: optimisation steps taken.
        confidence: one for each guessed example; None if the attack assigns none.
        trace: (step, seconds, objective).
        expired: whether the clock ended the attack before its schedule did; it is unfinished.
        exhausted: whether a budget among the attack's options ended its search, such as ``work`` of
            ``span``. A schedule, such as a number of steps, is no budget.
        blank: whether it is the prior's guess alone, as nothing else was read off the update.
        note: one line of caveats for the reader of the result.
        scores: of an attack that infers membership, one for each candidate ``(candidate,)``, the
            higher the likelier it was used. Its guess holds no examples.

    Example:
        >>> import torch
        >>> from attacks.base import Reconstruction
        >>> from fedsim.types import Batch
        >>> grey = Batch(torch.full((1, 3, 8, 8), 0.5), torch.tensor([2]))
        >>> Reconstruction(grey, confidence=("guess",)).confidence
        ('guess',)
    """

    guess: Batch
    objective: float | None = None
    steps: int = 0
    confidence: tuple[Certificate, ...] | None = None
    trace: Trace = ()
    expired: bool = False
    exhausted: bool = False
    blank: bool = False
    note: str = ""
    scores: Tensor | None = None

    @property
    def certified(self) -> bool:
        """Whether an example of the guess is certified, see ``attacks.proofs.verdict``."""
        return "certified" in (self.confidence or ())

    @property
    def proven(self) -> bool:
        """Whether all examples of the guess are certified."""
        return set(self.confidence or ()) == {"certified"}


@dataclass
class Job:
    """The resources and callbacks that a worker gives to an attack.

    Attributes:
        device: where the attack has to compute.
        deadline: ``time.monotonic()`` at which the attack must return its best guess so far. It
            guards the machine: a guess that it ended is unfinished.
        late: whether the attack was told that the deadline is over.
        work: tokens that a search may put through its network, see ``limited``; the same on any
            machine. Unlimited where a schedule ends the search.
        done: tokens that went through it.
        report: called from time to time with (step, objective, guess so far): a text, or images
            ``(image, channel, height, width)``; an empty text where the attack has none.
        auxiliary: reads the attacker's own rows; raises ``CannotAttack`` if there are none.
        keep: stores a checkpoint of the preparation and replaces the previous one.
        resume: the checkpoint of an interrupted preparation; empty if there is none.
        candidates: reads the rows among which membership is inferred; raises ``CannotAttack`` if
            there are none.
        predicted: predictions that ``attacks.observed.labels`` computes once for each set of
            weights.
        prepared: the tensors that ``Attack.prepare`` returned.

    Example:
        Call an attack without a run:

        >>> import torch
        >>> from attacks import ATTACKS
        >>> from attacks.base import Job
        >>> attack, job = ATTACKS["closed_form"](), Job()
        >>> job.device
        device(type='cpu')
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    deadline: float = float("inf")
    late: bool = False
    work: float = float("inf")
    done: int = 0
    report: Callable[[int, float, str | Tensor], object] = lambda step, objective, guess: None
    auxiliary: Callable[[], Batch] = lambda: _no_auxiliary()
    candidates: Callable[[], Batch] = lambda: _no_candidates()
    keep: Callable[[Tensors], object] = lambda tensors: None
    resume: Callable[[], Tensors] = dict
    predicted: dict[int, Tensor] = field(default_factory=dict)
    prepared: Tensors | None = None

    @property
    def expired(self) -> bool:
        """Whether the search has to end, as its work is done or its time is up."""
        over = time.monotonic() >= self.deadline
        self.late = self.late or over
        return over or self.done >= self.work

    @contextmanager
    def limited(self, network: nn.Module, work: float) -> Iterator[Callable[[], bool]]:
        """Count the tokens ``(sentence, token, ...)`` of each pass, up to so much work.

        Yields whether the work is done, and the time is not up. Passes of copies that are made
        meanwhile count as well, and those that leave the head out.
        """

        def count(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            self.done += inputs.shape[:2].numel()

        self.work, self.done = work, 0
        inner: nn.Module = getattr(network, "base_model", network)  # without the head
        handle = inner.register_forward_pre_hook(count, with_kwargs=True)
        try:
            yield lambda: self.done >= self.work and not self.late
        finally:
            handle.remove()
            self.work = float("inf")


def _no_auxiliary() -> Batch:
    raise CannotAttack(
        "it needs auxiliary rows, which this threat model does not grant",
        "Name them under [auxiliary].",
        ("auxiliary",),
    )


def _no_candidates() -> Batch:
    raise CannotAttack(
        "it needs candidate rows, and this experiment names none",
        "Set candidates.fresh = 200, for example.",
    )


@dataclass(frozen=True)
class Attack:
    """A frozen dataclass whose fields are the attack's options.

    An attack overrides ``guess``, or ``reconstruct`` if it attacks a group together.

    Attributes:
        title: name in tables and figures; if empty, the name in experiment files with spaces.
        requires: facts that the attack needs, checked before any computation.
        modalities: kinds of data that it can reconstruct.
        infers: the rows of an update, which of given candidates are among them, or what they have
            in common.
        estimates: distortions that the attack measures on the update itself, so that it need not be
            told of a defense that does nothing else.
        grouping: the observations of one call, unless an option changes that, see ``grouped_by``: a
            single one, all of one broadcast model, all of one client by round, or all there are, by
            round and client.
        uses: of what a declared defense does to an update, what the adaptive form has in its
            likelihood, or simulates. None for nothing: it then shows nothing of a defense that
            holds. A plug-in that names some has a test that it reads more with them than without.
        objective_unit: of ``objectives``; ``nats`` if they are ``-log p`` up to a constant.
        adaptive: whether it uses the surrogate of the declared defense.

    Example:
        Guess grey, whatever was received:

        >>> from dataclasses import dataclass
        >>> import torch
        >>> from attacks.base import Attack, Reconstruction
        >>> from fedsim.types import Batch
        >>> @dataclass(frozen=True)
        ... class Grey(Attack):
        ...     level: float = 0.5
        ...     def guess(self, observation, task, rng, job):
        ...         count = observation.knowledge.num_examples or 1
        ...         images = torch.full((count, *task.spec.input_shape), self.level)
        ...         return Reconstruction(Batch(images, torch.full((count,), -1)))
        >>> import fedsim
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> def loss(network, batch):
        ...     return torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels)
        >>> gradients = [torch.ones_like(value) for value in net.parameters()]
        >>> victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
        >>> fedsim.attack(victim, Grey(), quiet=True).images.mean().item()
        0.5
    """

    title: ClassVar[str] = ""
    requires: ClassVar[frozenset[Fact]] = frozenset()
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image", "text"})
    grouping: ClassVar[Grouping] = "each"
    infers: ClassVar[Inferred] = "rows"
    estimates: ClassVar[frozenset[Distortion]] = frozenset()
    uses: ClassVar[frozenset[Distortion] | None] = None
    objective_unit: ClassVar[str] = ""

    @property
    def is_adaptive(self) -> bool:
        """Whether the attack uses the declared defense."""
        return bool(getattr(self, "adaptive", False))

    @property
    def grouped_by(self) -> Grouping:
        """How the observations of one call are chosen; ``grouping``, unless an option changes it.

        An attack over rounds overrides this for its option, returns ``same_client``, and keeps to
        the order that ``reconstruct`` describes. ``attacks.observed.same_rows`` says in which
        rounds a client held the same rows, and ``attacks.images.image_matching`` is an example.
        """
        return self.grouping

    def abridged(self) -> tuple[Attack, float] | None:
        """The attack with little work before its first step, and its length in such steps.

        Used to estimate the time of a job; None if no schedule fixes the number of steps. Unless
        overridden, an option ``steps`` is that number, and to infer no rows takes none.
        """
        if self.infers != "rows":
            return self, 0.0
        steps: int | None = getattr(self, "steps", None)
        return None if steps is None else (self, steps)

    def feasible(self, prospect: Prospect) -> Feasibility | None:
        """Whether the attack can work on such replies; None if that cannot be predicted.

        Meant for attacks that solve for the inputs, whose capacity is a number that can be counted.
        """
        del prospect
        return None

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors | None:
        """Tensors learned once from auxiliary rows for given weights and defense, if any."""
        del observation, task, job, seed
        return None

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """One observation's guess.

        Args:
            observation: what the server saw of one client in one round.
            task: the model architecture and loss; no private row is reachable from it.
            rng: a CPU generator, the only source of randomness.
            job: device, deadline, progress, auxiliary rows and prepared tensors.

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

        Of one client's observations, which come by round, guess i may use the first i + 1 only:
        what the server knew in that round. Records, scores and curves by round rely on it. So does
        a guess from a whole run: it may use those of its round and of earlier ones.

        Args:
            observations: a group formed according to ``grouped_by``.
            task: as in ``guess``.
            rngs: one CPU generator for each observation, so that a guess does not depend on the
                other observations of its group.
            job: as in ``guess``.

        Raises:
            CannotAttack: as in ``guess``; the observations are then attacked one by one.
        """
        pairs = zip(observations, rngs, strict=True)
        return [self.guess(observation, task, rng, job) for observation, rng in pairs]

    def objectives(
        self,
        observation: Observation,
        task: Task,
        batches: Sequence[Batch],
        rng: torch.Generator,
        job: Job,
    ) -> list[float] | None:
        """By what the attack chooses between guesses, at each of these batches; lower is better.

        Whoever knows the private rows asks for theirs beside the guess's. Where theirs is lower the
        search missed what the update tells, a *search error*; else the update does not tell them
        from the guess, as this attack reads it.

        Args:
            observation: as in ``guess``.
            task: as in ``guess``.
            batches: of as many examples as were used; over local steps in the order of first use.
            rng: as in ``guess``.
            job: as in ``guess``.

        Returns:
            None where the attack does not choose by one number that any batch has.
        """
        del observation, task, batches, rng, job
        return None


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
            "Without it, choose another attack.",
            missing,
        )
