"""An estimate of an experiment's run time, from timing one client step and a few attack steps."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from attacks import attack_classes
from attacks.base import Attack, Job, check_facts
from clients.granted_facts import granted
from clients.train import LocalTrainer
from clients.updates import LocalUpdate
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.plan.rehearsal import Start
from experiments.preview.replies import replies
from fedsim.build import build
from fedsim.capture import CaptureKey, Observation
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.local.steps import schedule
from fedsim.seeds import generator
from fedsim.threads import one_thread

PATIENCE = 0.5
"""Seconds after which the timing of an attack stops."""
_LOOKS = 4  # steps of a search that are timed, if they are quick

_EVALUATED = 16  # held-out rows that are timed
_LONG = 5  # work that takes more seconds than this is timed only once


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Wall time of one experiment, in seconds, on this machine under its current load.

    With R replies of S local steps, each of t seconds after a set-up of u seconds, E seconds to
    evaluate a round, W workers, C captures, and k steps of s seconds per capture for each search,
    which takes o seconds before its first step and after its last:

        simulation = R (u + S (t - u)) / W + rounds E
        attacks    = C sum(o + k s) / W

    In one process W is 1, and more workers than the machine has cores count as its cores.

    A step of an attack over rounds counts once for each round that it uses.

    Attributes:
        simulation: training and evaluation of all cells, without starting Ray and Flower.
        step: one local step of one client, including the set-up of the model.
        attacks: all searches with a fixed number of steps.
        steps: for each such attack, seconds per step and number of steps.
        quick: all attacks that finished when they were tried, on all captures.
        tries: for each such attack, seconds per capture.
        budgeted: number of attacked captures whose attack is of neither kind; a learned attack
            counts once for each broadcast model that it trains on, as its guesses take no time.
        budget: time that these take if each uses up its time budget.
        others: the attacks of neither kind.
    """

    simulation: float
    step: float
    attacks: float
    steps: dict[str, tuple[float, float]]
    quick: float
    tries: dict[str, float]
    budgeted: int
    budget: float
    others: tuple[str, ...]

    def text(self) -> str:
        """One line per stage."""
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
            which = f"other attacks ({', '.join(self.others)})"
            lines.append(f"{which}: {self.budgeted} captures or trainings, {most}")
        return "\n".join(lines)


def span(seconds: float) -> str:
    """``2.3 ms``, ``4 s``, ``12 min`` or ``3.5 h``."""
    units = ((1e-3, 1, "ms"), (1, 100, "s"), (60, 6000, "min"), (3600, float("inf"), "h"))
    size, unit = next((size, unit) for size, end, unit in units if seconds < end)
    value = seconds / size
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def estimate(cells: Sequence[Cell], start: Start, captures: int) -> CostEstimate:
    """Time the first cell of one experiment and extrapolate to all cells.

    Args:
        cells: cells of the experiment, which may differ in batch size and steps.
        start: starting point of the first cell.
        captures: number of captures of all cells.
    """
    first, stage = cells[0], cells[0].experiment.attack_stage
    with one_thread():
        watch = _Watch(first, start)
        searches: dict[str, tuple[float, float, float]] = {}
        tries, others, budgeted = {}, [], 0
        trainings = sum(len(cell.config.captured_rounds) for cell in cells)
        for entry in entries(first.experiment):
            attack = build(attack_classes(), entry.table, "attacks")
            if costs := watch.search(attack):
                searches |= {entry.label: costs} if costs[1] else {}
            elif took := watch.trial(attack):
                tries[entry.label] = took
            elif (
                took is None or len(cells) > 1
            ):  # an attack that fails on one cell may work on another
                budgeted += trainings if attack.learned_once else captures
                others.append(entry.label)
        simulation = sum(watch.simulation(cell) for cell in cells)
    workers = 1
    if first.experiment.federation.engine == "ray":
        workers = stage.workers if stage.address else min(stage.workers, os.cpu_count() or 1)
    attacks = captures * sum(rest + step * count for step, count, rest in searches.values())
    return CostEstimate(
        simulation=simulation,
        step=watch.step,
        attacks=attacks / workers,
        steps={label: (step, count) for label, (step, count, _) in searches.items()},
        quick=captures * sum(tries.values()) / workers,
        tries=tries,
        budgeted=budgeted,
        budget=budgeted * stage.time_budget / workers,
        others=tuple(others),
    )


class _Watch:
    """Times the work of a cell's first client, and the attacks on its update."""

    def __init__(self, cell: Cell, start: Start) -> None:
        self._cell, self._setting, self._weights = cell, start.setting, start.weights
        self._steps: dict[int, float] = {}
        self._set_up = _seconds(lambda: start.setting.task.model(start.weights))
        self._update: LocalUpdate
        self.step = self._step(cell.config.federation.batch_size)

    def _step(self, size: int) -> float:
        """Seconds of one step on ``size`` examples, including the set-up of the model."""
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
        """Seconds of training and evaluation of one cell."""
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

    def search(self, attack: Attack) -> tuple[float, float, float] | None:
        """Seconds per step, number of steps, and seconds besides.

        None if the attack has no fixed number of steps.
        """
        short = attack.abridged()
        if short is None or type(attack).prepare is not Attack.prepare:
            return None
        trial, steps = short
        if not steps:
            return 0.0, 0.0, 0.0
        took = []
        try:
            for _ in range(2):  # the first run also loads code
                clock, began = StepClock(), time.perf_counter()
                self._attack(trial, clock)
                took.append((clock.step, time.perf_counter() - began - clock.span))
        except CannotAttack:
            return 0.0, 0.0, 0.0
        step, rest = map(min, zip(*took, strict=True))
        return step, steps * self._rounds(attack), rest

    def _rounds(self, attack: Attack) -> float:
        """Mean number of rounds whose updates a guess uses, and a step therefore costs."""
        if attack.grouped_by != "same_client":
            return 1.0
        config, labels = self._cell.config, self._setting.holdings.private.labels
        parts = partition(labels, config.federation.clients, config.federation, config.seed)
        whole = {frozenset(part) for part in parts}
        seen = Counter(frozenset(reply.rows) for reply in replies(config, labels))
        used = sum(n * (n + 1) / 2 if rows in whole else n for rows, n in seen.items())
        return used / max(1, seen.total())

    def trial(self, attack: Attack) -> float | None:
        """Seconds of a whole attack, 0 if it refuses; None if it trains first or did not finish."""
        if type(attack).prepare is not Attack.prepare:
            return None
        took: list[float] = []
        try:
            # The first run also loads code.
            while not took or (len(took) == 1 and took[0] < PATIENCE):
                trial = TimedTrial()
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
        """Run an attack on the undefended update."""
        task, holdings, update = self._setting.task, self._setting.holdings, self._update
        knowledge = granted(self._cell.config, update)
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, self._weights, update.tensors, update.kind, knowledge)
        if (rows := holdings.auxiliary) is not None and knowledge.auxiliary:
            job.auxiliary = lambda: task.encode(rows)
        check_facts(attack, knowledge, task)
        attack.reconstruct([seen], task, [generator(0, "estimate")], job)


def _seconds(work: Callable[[], object]) -> float:
    """Shorter of two runs, as the first also loads code. Long work is timed only once."""
    took = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
        if took[-1] > _LONG:
            break
    return min(took)


@dataclass
class StepClock(Job):
    """A job that stops a search after a few steps and records when each of them began."""

    looks: list[float] = field(default_factory=list)

    @property
    def expired(self) -> bool:
        """True once enough steps have been timed."""
        self.looks.append(time.perf_counter())
        return len(self.looks) > _LOOKS or self.looks[-1] - self.looks[0] > PATIENCE

    @property
    def span(self) -> float:
        """Seconds from the first step that was timed to the last."""
        return self.looks[-1] - self.looks[0] if self.looks else 0.0

    @property
    def step(self) -> float:
        """Mean seconds per step."""
        return self.span / max(1, len(self.looks) - 1)


@dataclass
class TimedTrial(Job):
    """A job that stops an attack after a while and records whether it had to."""

    began: float = field(default_factory=time.perf_counter)
    heard: bool = False

    @property
    def expired(self) -> bool:
        """True once the attack has run long enough to be called slow."""
        self.heard = self.heard or time.perf_counter() - self.began > PATIENCE
        return self.heard
