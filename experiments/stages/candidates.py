"""Candidate rows of membership attacks: some that clients use, and some that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from experiments.plan.cells import Cell
from fedsim.capture import batch_tensors
from fedsim.cell import CellConfig
from fedsim.data.holdings import fresh_rows
from fedsim.data.partition import partition
from fedsim.files import save_tensors
from fedsim.local.steps import schedule
from fedsim.participation import cohort_of, draw
from fedsim.seeds import generator
from fedsim.setting import load_setting
from fedsim.types import Rows, joined


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
