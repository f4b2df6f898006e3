"""``fedsim audit``: epsilon measured from below by canaries, beside the accountant's bound."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.bounds.limits import Case, cases
from experiments.bounds.one_run import CanaryTrial, Claim, any_bound, gaussian_bound
from experiments.bounds.success import mechanism
from experiments.plan.folder import Run
from experiments.wording.epsilons import Epsilons
from fedsim.canaries import LOUD, Canaries, turn
from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.defenses.base import Defense, Gaussian
from fedsim.errors import ConfigError
from fedsim.local.client import LocalClient
from fedsim.local.steps import schedule
from fedsim.process import one_thread
from fedsim.seeds import generator, numpy_generator
from fedsim.store.capture import CaptureStore
from fedsim.store.files import Record, Sealed, load_tensors, write_json
from fedsim.types import Batch, Rows, Tensors

FEWEST = 20
"""With fewer canaries no bound is ever above 0."""
_USUAL = range(1_000, 10_001)
"""Canaries that are planted unless a number is asked for."""
_ERROR = 0.05
"""Chance that one of an audit's lower bounds is too high, for each of the two kinds."""


class AuditRow(Record):
    """Bounds on the epsilon that a cell's first client has spent after a round.

    Attributes:
        unit: what epsilon protects: ``example``, or a client's whole ``update``.
        epsilon: the accountant's upper bound, by the relation in which canaries differ.
        accounted: by both relations of neighbours.
        lower: lower bound for Gaussian noise of unknown size. All of an audit's hold together
            with 95 % confidence.
        any_mechanism: lower bounds that assume nothing about the mechanism, as confident.
        shift: how far inclusion moves the score, relative to what the claim implies: far from 1,
            the canaries do not get through as declared, and a low bound means nothing.
    """

    run: str
    cell: str
    defense: str
    defense_options: str
    unit: str
    round: int
    canaries: int
    epsilon: float
    lower: float
    any_mechanism: float
    shift: float
    accounted: Epsilons

    @property
    def refuted(self) -> bool:
        """Whether the lower bound exceeds the accountant's upper bound."""
        return self.shown > self.epsilon

    @property
    def shown(self) -> float:
        """What canaries show epsilon to be at least."""
        return max(self.lower, self.any_mechanism)


class AuditRecord(Sealed):
    """The whole of ``audit.json``; ``skipped`` says why other cells are not audited."""

    rows: tuple[AuditRow, ...]
    skipped: dict[str, str]

    @property
    def refuted(self) -> int:
        """Number of claims whose lower bound exceeds the accountant's upper bound."""
        return sum(row.refuted for row in self.rows)

    def text(self) -> str:
        """One line per cell and round, then one per cell that is not audited."""
        lines = [
            f"{row.cell}  round {row.round}: epsilon at least {row.lower:.3g} (any mechanism: "
            f"{row.any_mechanism:.3g}), at most "
            f"{row.accounted.both}, of one run; "
            f"shift {row.shift:.2f}{'; REFUTED' if row.refuted else ''}"
            for row in self.rows
        ]
        lines += [f"{cell}  not audited: {reason}" for cell, reason in self.skipped.items()]
        return "\n".join([*lines, f"{len(self.rows)} claims audited, {self.refuted} refuted"])


def obstacle(config: CellConfig) -> str:
    """Why a cell cannot be audited; empty if it can be."""
    defenses = build_chain(config.defense, "defense").defenses
    noise = defenses[0].gaussian if len(defenses) == 1 and defenses[0].unit else None
    if noise is None:
        return "its defense is not dp_sgd or dp_client alone"
    if config.federation.protocol != "fedsgd":
        return "under fedavg the server sees sums of local steps; set federation.protocol = fedsgd"
    if config.federation.cohort > 1:
        return f"the server sees the sum of {config.federation.cohort} clients"
    if noise.std == 0:
        return "it adds no noise, so epsilon is infinite"
    return ""


def audit(run: Run, canaries: int | None = None) -> AuditRecord:
    """Audit the first client of each cell of the first seed, and write ``audit.json``.

    Args:
        run: the run.
        canaries: for each cell; by default ``Claim.enough`` for half of its epsilon.

    Raises:
        ConfigError: there are too few canaries, or more than the client sends coordinates.
    """
    if canaries is not None and canaries < FEWEST:
        raise ConfigError(f"canaries: {canaries} is too few. Take at least {FEWEST}.")
    configs = [cell.config for cell in run.cells if cell.config.seed == cell.experiment.seeds[0]]
    claims = sum(len(_rounds(config)) for config in configs if not obstacle(config))
    rows: list[AuditRow] = []
    skipped = {}
    for case in cases(run.cells):
        if reason := obstacle(case.cell.config):
            skipped[case.cell.name] = reason
            continue
        with one_thread():
            rows += audit_case(case, canaries, _ERROR / claims)
    record = AuditRecord(rows=tuple(rows), skipped=skipped)
    write_json(run.root / "audit.json", record)
    return record


def _rounds(config: CellConfig) -> list[int]:
    """A quarter of the rounds, half of them, and all."""
    rounds = config.federation.rounds
    return sorted({max(1, rounds // share) for share in (4, 2, 1)})


def audit_case(case: Case, canaries: int | None, error: float) -> list[AuditRow]:
    """The bounds of one cell after some of its rounds, each wrong with this probability at most."""
    config, setting = case.cell.config, case.setting
    federation, private, store = config.federation, setting.holdings.private, case.cell.captures
    part = partition(private.labels, federation.clients, federation, config.seed)[0]
    chain, claim = build_chain(config.defense, "defense"), mechanism(config, len(part))
    defense = chain.defenses[0]
    noise = defense.gaussian
    assert noise is not None
    assert claim is not None
    trainer = LocalClient(setting.task, federation, chain, config.seed, torch.device("cpu"))
    auditor = Auditor(trainer, defense, private.take(part), broadcasts(store))
    shapes = {name: case.weights[name].shape for name in store.record(store.keys()[0]).order}
    size = sum(map(torch.Size.numel, shapes.values()))
    if canaries is None:
        last = Claim(federation.rounds, claim.turn.chance, claim.noise, noise.delta)
        canaries = min(max(last.enough(error), _USUAL[0]), _USUAL[-1], size)
    if canaries > size:
        raise ConfigError(f"canaries: {canaries} do not fit into the {size} coordinates sent.")
    trial = auditor.trial(shapes, canaries, 0, federation.clients + config.probes.count)
    rows = []
    for steps in _rounds(config):
        seen, tested = trial.until(steps), Claim(steps, trial.rate, claim.noise, noise.delta)
        spent = Epsilons.of(steps, claim.turn.chance, claim.noise * noise.reach, noise.delta)
        row = AuditRow(
            **case.who,
            unit=claim.unit,
            round=steps,
            canaries=canaries,
            epsilon=tested.epsilon,
            accounted=spent,
            lower=gaussian_bound(seen, tested, 1 - error),
            any_mechanism=any_bound(seen, tested, 1 - error),
            shift=seen.shift / (steps * tested.rate),
        )
        rows.append(row)
    return rows


def broadcasts(store: CaptureStore) -> Callable[[int], Tensors]:
    """Round -> what was broadcast, in a round without captures that of the captured one before."""
    hashes = {key.round: store.record(key).sent_sha256 for key in store.keys()}
    orders = {key.round: store.record(key).sent_order for key in store.keys()}

    @lru_cache(maxsize=1)
    def sent(round_: int) -> Tensors:
        known = max((number for number in hashes if number <= round_), default=min(hashes))
        return load_tensors(store.sent_path(hashes[known]), hashes[known], orders[known])

    return sent


Sampler: TypeAlias = Callable[[FederationConfig, int, int, int, int], Sequence[Sequence[int]]]
Shapes: TypeAlias = dict[str, torch.Size]


@dataclass(frozen=True)
class Auditor:
    """Runs one client with canaries.

    Attributes:
        trainer: the client's training, not fitted yet.
        defense: the one that makes the claim.
        rows: the client's own.
        sent: the broadcast of a round.
        sample: draws the batch of a round, as ``fedsim.local.steps.schedule`` does.
    """

    trainer: LocalClient
    defense: Defense
    rows: Rows
    sent: Callable[[int], Tensors]
    sample: Sampler = schedule

    @property
    def _noise(self) -> Gaussian:
        noise = self.defense.gaussian
        assert noise is not None
        return noise

    def trial(self, shapes: Shapes, count: int, client: int, numbers: int) -> CanaryTrial:
        """The scores of ``count`` canaries with every release of the run.

        Args:
            shapes: of the tensors that the client sends.
            count: number of canaries.
            client: number of the client.
            numbers: the first number that no client has.
        """
        seed = self.trainer.seed
        coins = numpy_generator(seed, "audit", client).random(count) < 0.5
        rng = generator(seed, "audit", client)
        if self.defense.unit == "update":
            return self._updates(Canaries.draw(shapes, 1, rng), coins, numbers)
        return self._examples(Canaries.draw(shapes, count, rng), coins, client)

    def _examples(self, canaries: Canaries, coins: NDArray[np.bool_], client: int) -> CanaryTrial:
        """Canaries as further rows, drawn by the client's own sampler at the rate of its rows."""
        planted, count = np.flatnonzero(coins).tolist(), len(self.rows)
        size = min(self.trainer.config.batch_size, count) * (count + len(planted)) // count
        config = self.trainer.config.model_copy(update={"batch_size": size})
        trainer, batch = self.trainer.fit(count), self.trainer.task.encode(self.rows)
        scores = []
        for round_ in range(1, config.rounds + 1):
            drawn = self.sample(config, trainer.seed, count + len(planted), round_, client)[0]
            real = batch[[position for position in drawn if position < count]]
            norm = turn(round_) * LOUD * self._noise.clip
            among = [planted[position - count] for position in drawn if position >= count]
            gradients = tuple(canaries.gradient(canary, norm) for canary in among)
            host = Planted(**vars(trainer), canaries=gradients)
            received = host.defend(self.sent(round_), real, [], round_, client).tensors
            products = canaries.products(received) * len(drawn)
            scores.append(turn(round_) * products / self._noise.clip)
        places = (count + np.cumsum(coins) - coins) / size
        rate = size / (count + len(planted))
        return CanaryTrial(torch.stack(scores, 1).numpy(), coins, places, rate)

    def _updates(self, canary: Canaries, coins: NDArray[np.bool_], numbers: int) -> CanaryTrial:
        """Each coin is a client of its own, which sends one direction, or else its opposite."""
        opposite = 1.0 - self._noise.reach
        trainer, batch = self.trainer.fit(len(self.rows)), self.trainer.task.encode(self.rows)
        scores = torch.zeros(len(coins), trainer.config.rounds, dtype=torch.float64)
        for round_ in range(1, trainer.config.rounds + 1):
            norm = turn(round_) * LOUD * self._noise.clip
            sent, up = self.sent(round_), canary.gradient(0, norm)
            down = {name: value * opposite for name, value in up.items()}
            for number, coin in enumerate(coins):
                client = Replaced(**vars(trainer), canary=up if coin else down)
                received = client.defend(sent, batch[:1], [], round_, numbers + number).tensors
                product = turn(round_) * canary.products(received)[0] / self._noise.clip
                scores[number, round_ - 1] = (product - opposite) / (1 - opposite)
        return CanaryTrial(scores.numpy(), coins, np.zeros(len(coins)))


@dataclass(frozen=True)
class Planted(LocalClient):
    """A client in whose batch canaries stand as further examples, for ``dp_sgd``."""

    canaries: tuple[Tensors, ...]

    def single_gradients(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensors, float]]:
        """Gradients of the examples, then the canaries."""
        yield from super().single_gradients(model, batch)
        yield from ((canary, 0.0) for canary in self.canaries)


@dataclass(frozen=True)
class Replaced(LocalClient):
    """A client that sends a canary instead of what it has learned, for ``dp_client``."""

    canary: Tensors

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """The canary, and no loss."""
        del model, batch, rng
        return self.canary, 0.0
