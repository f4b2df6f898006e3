"""About how long an experiment takes, from one client step and a few steps of each search."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from attacks import attack_classes
from attacks.base import Attack, Job, check_facts
from clients.grants import granted
from clients.local_steps import schedule
from clients.train import LocalTrainer, LocalUpdate
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.plan.rehearsal import Start
from fedsim.build import build
from fedsim.capture import CaptureKey, Observation
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.threads import one_thread

_LOOKS = 4  # steps of a search, if they are quick
_PATIENCE = 0.5  # seconds after which a search is not watched any longer
_EVALUATED = 16  # held-out rows that are timed
_LONG = 5  # seconds after which nothing is timed a second time


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Wall time of one experiment, in seconds, on this machine as it is now.

    Attributes:
        simulation: clients, and the evaluation of each round; without starting Ray and Flower.
        step: one local step of one client, the model's set-up included.
        attacks: searches with a schedule, one victim after another on each worker.
        steps: of each such attack, seconds for a step and how many there are.
        quick: attacks that ended by themselves when they were tried, on all captures.
        tries: of each such attack, seconds a capture.
        budgeted: attacked captures whose attack neither has a schedule nor ended.
        budget: seconds until all of those had used up their time.
    """

    simulation: float
    step: float
    attacks: float
    steps: dict[str, tuple[float, float]]
    quick: float
    tries: dict[str, float]
    budgeted: int
    budget: float

    def text(self) -> str:
        """A line for each stage."""
        step = f"a client's step took {span(self.step)} here"
        lines = [f"simulation: about {span(self.simulation)}, as {step}"]
        if self.steps:
            how = ", ".join(
                f"{label} {count:,.0f} steps of {span(step)}"
                for label, (step, count) in self.steps.items()
            )
            lines.append(f"searches: about {span(self.attacks)} ({how} a capture)")
        if self.tries:
            how = ", ".join(f"{label} {span(took)}" for label, took in self.tries.items())
            lines.append(f"quick attacks: about {span(self.quick)} ({how} a capture)")
        if self.budgeted:
            most = f"at most {span(self.budget)} by the time budget"
            lines.append(f"other attacks: {self.budgeted} captures, {most}")
        return "\n".join(lines)


def span(seconds: float) -> str:
    """``2.3 ms``, ``4 s``, ``12 min`` or ``3.5 h``."""
    units = ((1e-3, 1, "ms"), (1, 100, "s"), (60, 6000, "min"), (3600, float("inf"), "h"))
    size, unit = next((size, unit) for size, end, unit in units if seconds < end)
    value = seconds / size
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def estimate(cells: Sequence[Cell], start: Start, captures: int) -> CostEstimate:
    """Time the first cell of one experiment, and multiply.

    Args:
        cells: of the experiment; they may differ in batch size and steps.
        start: of the first one.
        captures: of all cells.
    """
    first, stage = cells[0], cells[0].experiment.attack_stage
    with one_thread():
        watch = _Watch(first, start)
        searches: dict[str, tuple[float, float]] = {}
        tries, budgeted = {}, 0
        for entry in entries(first.experiment):
            attack = build(attack_classes(), entry.table, "attacks")
            if found := watch.search(attack):
                searches |= {entry.label: found} if found[1] else {}
            elif took := watch.trial(attack):
                tries[entry.label] = took
            elif took is None or len(cells) > 1:  # what one cell rules out may go in another
                budgeted += captures
        simulation = sum(watch.simulation(cell) for cell in cells)
    attacks = captures * sum(step * count for step, count in searches.values()) / stage.workers
    quick = captures * sum(tries.values()) / stage.workers
    budget = budgeted * stage.time_budget / stage.workers
    return CostEstimate(simulation, watch.step, attacks, searches, quick, tries, budgeted, budget)


@dataclass
class _Clock(Job):
    """A job that ends a search after a few steps, and knows when each of them began."""

    looks: list[float] = field(default_factory=list)

    @property
    def expired(self) -> bool:
        """Whether enough was seen."""
        self.looks.append(time.perf_counter())
        return len(self.looks) > _LOOKS or self.looks[-1] - self.looks[0] > _PATIENCE

    @property
    def step(self) -> float:
        """Seconds between two looks."""
        return (self.looks[-1] - self.looks[0]) / max(1, len(self.looks) - 1)


@dataclass
class _Trial(Job):
    """A job that ends an attack after a while, and knows whether the attack heard of it."""

    began: float = field(default_factory=time.perf_counter)
    heard: bool = False

    @property
    def expired(self) -> bool:
        """Whether it was watched for long enough."""
        self.heard = self.heard or time.perf_counter() - self.began > _PATIENCE
        return self.heard


class _Watch:
    """Times what the first client of a cell does, and what is done to its update."""

    def __init__(self, cell: Cell, start: Start) -> None:
        self._cell, self._setting, self._weights = cell, start.setting, start.weights
        self._steps: dict[int, float] = {}
        self._set_up = _seconds(lambda: start.setting.task.model(start.weights))
        self._update: LocalUpdate
        self.step = self._step(cell.config.federation.batch_size)

    def _step(self, size: int) -> float:
        """Seconds of one step on so many examples, and of the model's set-up."""
        if size not in self._steps:
            config = self._cell.config
            federation = config.federation.model_copy(update={"batch_size": size})
            private = self._setting.holdings.private
            parts = partition(private.labels, federation.clients, federation, config.seed)
            rows = private.take(parts[0])
            plan = schedule(federation, config.seed, len(rows), 1, 0)[:1]
            device = torch.device("cpu")
            trainer = LocalTrainer(self._setting.task, federation, Chain(), config.seed, device)

            def work() -> None:
                self._update = trainer.work(self._weights, rows, plan, 1, 0)

            self._steps[size] = _seconds(work)
        return self._steps[size]

    def simulation(self, cell: Cell) -> float:
        """Seconds of a cell's training and evaluation."""
        run, probes = cell.config.federation, cell.config.probes
        chain = build_chain(cell.config.defense, "defense")
        size, times = (1, run.batch_size) if chain.per_example else (run.batch_size, 1)
        rows = len(self._setting.holdings.private) // run.clients
        steps = len(schedule(run, cell.config.seed, max(1, rows), 1, 0))
        reply = self._set_up + steps * times * max(0.0, self._step(size) - self._set_up)
        replies = run.rounds * run.drawn + len(cell.config.captured_rounds) * probes.count
        workers = min(run.client_workers, os.cpu_count() or 1) if run.engine == "ray" else 1
        return replies * reply / workers + run.rounds * self._evaluation()

    def _evaluation(self) -> float:
        task, held = self._setting.task, self._setting.holdings.heldout
        if not hasattr(self, "_evaluated"):
            few = task.encode(held.take(range(min(len(held), _EVALUATED))))
            network = task.model(self._weights)
            seconds = _seconds(lambda: task.evaluate(network, [few]))
            self._evaluated = self._set_up + seconds * len(held) / len(few)
        return self._evaluated

    def search(self, attack: Attack) -> tuple[float, float] | None:
        """Seconds of a step, and how many there are; None without a schedule."""
        short = attack.abridged()
        if short is None or type(attack).prepare is not Attack.prepare:
            return None
        trial, steps = short
        if not steps:
            return 0.0, 0.0
        clock = _Clock()
        try:
            self._attack(trial, clock)
        except CannotAttack:
            return 0.0, 0.0
        return clock.step, steps

    def trial(self, attack: Attack) -> float | None:
        """Seconds of the whole, 0 where it cannot attack; None if it learns first or went on."""
        if type(attack).prepare is not Attack.prepare:
            return None
        took: list[float] = []
        try:
            while not took or (len(took) == 1 and took[0] < _PATIENCE):  # the first loads code
                trial = _Trial()
                self._attack(attack, trial)
                if trial.heard:
                    return None
                took.append(time.perf_counter() - trial.began)
        except CannotAttack:
            return 0.0
        except Exception:  # whatever an attack raises becomes a record of the run
            return None
        return min(took)

    def _attack(self, attack: Attack, job: Job) -> None:
        """Attack the update as if it were undefended."""
        task, holdings, update = self._setting.task, self._setting.holdings, self._update
        knowledge = granted(self._cell.config, update)
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, self._weights, update.tensors, update.kind, knowledge)
        if (rows := holdings.auxiliary) is not None and knowledge.auxiliary:
            job.auxiliary = lambda: task.encode(rows)
        check_facts(attack, knowledge, task)
        attack.reconstruct([seen], task, [generator(0, "estimate")], job)


def _seconds(work: Callable[[], object]) -> float:
    """The shorter of two goes, as the first also loads code; one, if it takes long."""
    took = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
        if took[-1] > _LONG:
            break
    return min(took)
