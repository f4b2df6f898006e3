"""The simulate stage: Flower apps on one of our grids."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from experiments.plan.cells import Cell
from experiments.stages.candidates import write_candidates
from experiments.stages.integrity import seal_truth

_APP = "clients.app:app"


class Simulator:
    """Trains cells one after another, in the same client processes where they run on Ray.

    With ``engine = "ray"`` a Ray cluster must have been started.
    """

    def __init__(self) -> None:
        self._workers: dict[tuple[int, float], Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def simulate(self, cell: Cell, on_round: Callable[[int], None] | None = None) -> None:
        """Train one cell from its first round; a half-done simulation is thrown away.

        The same cell gives the same captures, so that finished attacks on them stay valid.
        """
        from server.app import server_app
        from server.grids.in_process import InProcessGrid
        from server.grids.local import LocalGrid, run_server

        for name in ("captures", "truth"):
            shutil.rmtree(cell.folder / name, ignore_errors=True)
        write_candidates(cell)
        federation = cell.config.federation
        nodes = federation.clients + cell.config.probes.count
        run_config: dict[str, bool | float | int | str] = {"cell": str(cell.folder.resolve())}
        grid: LocalGrid
        if federation.engine == "ray":
            from server.grids.ray import RayGrid

            workers = self._client_workers(federation.client_workers, federation.client_gpus)
            timeout = federation.client_timeout
            grid = RayGrid(workers, nodes, run_config, timeout=timeout)
        else:
            grid = InProcessGrid(_APP, nodes, run_config)
        run_server(server_app(on_round), grid, run_config)
        seal_truth(cell)

    def _client_workers(self, count: int, gpus: float) -> Any:  # noqa: ANN401
        from server.grids.ray import Workers

        if (count, gpus) not in self._workers:
            workers = Workers(_APP, count, gpus)
            self._stack.callback(workers.close)
            self._workers[count, gpus] = workers
        return self._workers[count, gpus]
