"""The simulate stage: candidate rows for membership, then Flower apps on one of our grids."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from experiments.plan.cells import Cell
from experiments.stages.integrity import seal_truth
from fedsim.config.cell import CellConfig
from fedsim.config.setting import load_setting
from fedsim.data.holdings import fresh_rows
from fedsim.data.partition import partition
from fedsim.local.steps import schedule
from fedsim.participation import cohort_of, draw
from fedsim.seeds import generator
from fedsim.store.capture import batch_tensors
from fedsim.store.files import save_tensors
from fedsim.types import Rows, joined

_APP = "clients.app:app"


class Simulator(ExitStack):
    """Trains cells one after another, in the same client processes where they run on Ray.

    With ``engine = "ray"`` a Ray cluster must have been started.
    """

    def __init__(self) -> None:
        super().__init__()
        self._workers: dict[tuple[int, float], Any] = {}

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
            self.callback(workers.close)
            self._workers[count, gpus] = workers
        return self._workers[count, gpus]


def write_candidates(cell: Cell) -> None:
    """Write the shuffled candidates beside the captures, before the training begins.

    Which of them a client used is not written: the evaluator finds it by comparing the rows.

    Raises:
        ConfigError: too few held-out rows differ from all private and auxiliary rows.
    """
    wanted, config = cell.config.candidates, cell.config
    if not wanted.fresh or not config.capture.enabled:
        return
    setting = load_setting(config)
    holdings = setting.holdings
    fresh = fresh_rows(wanted.fresh, holdings)
    rng = generator(config.seed, "candidates")
    used = sorted(set(_used(config, holdings.private)))
    chosen = torch.randperm(len(used), generator=rng)[: max(1, round(wanted.share * len(used)))]
    drawn = torch.randperm(len(fresh), generator=rng)[: wanted.fresh].tolist()
    parts = [holdings.private.take([used[i] for i in chosen.tolist()]), fresh.take(drawn)]
    batch = joined([setting.task.encode(rows) for rows in parts])
    order = torch.randperm(len(batch), generator=rng)
    save_tensors(cell.captures.root / "candidates.safetensors", batch_tensors(batch[order]))


def _used(config: CellConfig, private: Rows) -> Iterator[int]:
    """Positions among the private rows of those behind captured updates."""
    federation, seed = config.federation, config.seed
    parts = partition(private.labels, federation.clients, federation, seed)
    for round_ in config.captured_rounds:
        for client in draw(seed, round_, federation.clients, federation.participation):
            cohort = cohort_of(federation, seed, round_, client)
            if config.captured.keeps(round_, client if cohort is None else cohort):
                rows = parts[client]
                for step in schedule(federation, seed, len(rows), round_, client):
                    yield from (rows[position] for position in step)
