"""Duration of a round with and without the eavesdropper, for the benchmark."""

import time
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedsim.config.cell import CellConfig
from fedsim.config.setting import load_setting
from fedsim.process import one_thread
from fedsim.store.files import read_record
from fedsim.tasks import initial_weights
from fedsim.wire import to_arrays
from server.app import aggregation
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Mean seconds of a round: on the clock, and of all threads' CPU time."""

    wall: float
    cpu: float


def round_cost(cell: Path, captures: Path | None) -> RoundCost:
    """Mean cost of a training round, until the last capture is on disk.

    Without ``captures`` nothing is captured. The utility is not measured.
    """
    config = read_record(cell / "cell.json", CellConfig)
    task = load_setting(config).task
    arrays = to_arrays(initial_weights(task, config.task, config.seed))
    rounds = config.federation.rounds
    wall = cpu = 0.0
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        nonlocal wall, cpu
        strategy: Strategy = aggregation(config.federation, task)
        if captures is not None:
            strategy = Eavesdropper(strategy, captures, overwrite=True)
        started, used = time.monotonic(), time.process_time()
        strategy.start(grid, arrays, num_rounds=rounds)
        wall, cpu = time.monotonic() - started, time.process_time() - used

    run_config: dict[str, bool | float | int | str] = {"cell": str(cell.resolve())}
    grid = InProcessGrid("clients.app:app", config.federation.clients, run_config)
    with one_thread():
        run_server(app, grid, run_config)
    return RoundCost(wall / rounds, cpu / rounds)


def update_bytes(cell: Path) -> int:
    """Size of one client's gradient in bytes."""
    config = read_record(cell / "cell.json", CellConfig)
    return sum(p.numel() * p.element_size() for p in load_setting(config).task.build().parameters())
