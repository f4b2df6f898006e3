"""Flower ServerApp: any Flower strategy, with an eavesdropper around it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Krum,
    Strategy,
)

from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.setting import load_setting
from fedsim.data.partition import partition
from fedsim.process import one_thread
from fedsim.records import TRAINING, SimulationRecord, TrainingRecord, UtilityPoint
from fedsim.store.capture import batch_tensors
from fedsim.store.files import hashes, read_record, save_tensors, write_json
from fedsim.tasks import initial_weights, save_task
from fedsim.tasks.base import Task
from fedsim.types import Batch
from fedsim.wire import to_arrays, to_tensors
from server.eavesdropper import Eavesdropper
from server.grids.local import LocalGrid
from server.grids.ordered import OrderedGrid
from server.merge import FedSGD, KeepMissing
from server.noise import with_noise
from server.participation import Participation
from server.probing import Probing
from server.secure_aggregation import SecureAggregation

_STRATEGIES: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedprox": FedProx,
    "fedmedian": FedMedian,
    "krum": Krum,
}
_EVALUATION_BATCH = 64


def server_app(on_round: Callable[[int], None] | None = None) -> ServerApp:
    """The app; ``on_round`` is called with each round whose captures are on disk."""
    built = ServerApp()

    @built.main()
    def main(grid: Grid, context: Context) -> None:
        federate(grid, Path(str(context.run_config["cell"])), on_round)

    return built


def federate(grid: Grid, cell: Path, on_round: Callable[[int], None] | None) -> None:
    """Train the cell's global model, capture replies as the cell asks, and measure the utility."""
    started = time.monotonic()
    config = read_record(cell / "cell.json", CellConfig)
    federation = config.federation
    setting = load_setting(config)
    task, holdings = setting.task, setting.holdings
    parts = partition(holdings.private.labels, federation.clients, federation, config.seed)
    save_task(task, cell / "captures")
    if holdings.auxiliary is not None and config.server_knows.auxiliary:
        auxiliary = task.encode(holdings.auxiliary)
        save_tensors(cell / "captures" / "auxiliary.safetensors", batch_tensors(auxiliary))

    names = [name for name, _ in task.build().named_parameters()]
    merge = with_noise(aggregation(federation, task), config, names)
    participation = Participation(merge, federation.participation, config.seed)
    probing = Probing(participation, federation.clients, config.captured)
    strategy = Eavesdropper(probing, cell / "captures", config.captured, on_round, overwrite=True)
    if not isinstance(grid, LocalGrid):
        grid = cast(Grid, OrderedGrid(grid, federation.clients + config.probes.count))
    if federation.cohort > 1:
        fixed = federation.cohorts == "fixed"
        grid = cast(Grid, SecureAggregation(grid, federation.cohort, config.seed, fixed=fixed))
    utility = UtilityMeter(task, task.encode(holdings.heldout), cell / TRAINING)
    strategy.start(
        grid,
        to_arrays(initial_weights(task, config.task, config.seed)),
        num_rounds=federation.rounds,
        timeout=federation.client_timeout,
        evaluate_fn=utility.measure,
    )
    record = SimulationRecord(
        seconds=time.monotonic() - started,
        utility=tuple(utility.points),
        bytes_up={r: size * federation.cohort for r, size in participation.bytes_up.items()},
        incidents=tuple(getattr(grid, "incidents", ())),
        client_rows=tuple(map(len, parts)),
        captures=hashes(cell / "captures"),
    )
    write_json(cell / "simulation.json", record)
    (cell / TRAINING).unlink()


def aggregation(federation: FederationConfig, task: Task) -> Strategy:
    """The strategy that ``[federation]`` asks for, without an eavesdropper."""
    everyone: dict[str, Any] = {  # the clients are drawn by Participation
        "fraction_train": 1.0,
        "min_train_nodes": 1,
        "min_available_nodes": 1,
        "fraction_evaluate": 0.0,
    }
    if federation.protocol == "fedsgd":
        parameters = [name for name, _ in task.build().named_parameters()]
        step = federation.learning_rate * federation.server_learning_rate
        return FedSGD(FedAvg(**everyone), step, parameters)
    options: dict[str, dict[str, Any]] = {
        "fedavgm": {"server_momentum": federation.server_momentum},
        "fedprox": {"proximal_mu": federation.proximal_mu},
        "krum": {"num_malicious_nodes": federation.malicious_nodes},
    }
    chosen = _STRATEGIES[federation.strategy](**everyone, **options.get(federation.strategy, {}))
    return KeepMissing(chosen, federation.server_learning_rate)


@dataclass
class UtilityMeter:
    """Utility of the global model on held-out rows, before the first and after every round.

    Attributes:
        task: model and loss.
        heldout: the encoded held-out rows.
        path: where the measurements are written after each round.
        points: the measurements so far.
    """

    task: Task
    heldout: Batch
    path: Path
    points: list[UtilityPoint] = field(default_factory=list)
    _before: float = field(default_factory=time.monotonic)

    def measure(self, round_: int, arrays: ArrayRecord) -> MetricRecord:
        """Evaluate in batches and in eval mode, whichever mode the clients train in."""
        batches = [
            self.heldout[start : start + _EVALUATION_BATCH]
            for start in range(0, len(self.heldout), _EVALUATION_BATCH)
        ]
        with one_thread():
            metrics = self.task.evaluate(self.task.model(to_tensors(arrays)), batches)
        now = time.monotonic()
        self.points += [
            UtilityPoint(round=round_, metric=name, value=value, seconds=now - self._before)
            for name, value in metrics.items()
        ]
        self._before = now
        write_json(self.path, TrainingRecord(utility=tuple(self.points)), sync=False)
        return MetricRecord({name: float(value) for name, value in metrics.items()})


app = server_app()
