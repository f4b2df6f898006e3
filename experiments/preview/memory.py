"""What the largest attack job has to hold in memory, before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attacks import attack_classes
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.plan.rehearsal import Start
from fedsim.build import build
from fedsim.cell import CellConfig


def heaviest_job(cells: Sequence[Cell], starts: Mapping[str, Start]) -> tuple[str, int, int]:
    """Of the attack whose jobs hold the most: its label, the updates of a job, and their bytes.

    All of them are on the device while the job works, beside what its search needs. A job of an
    attack that learns from auxiliary rows also holds their updates, as far as it keeps them.
    """
    jobs = [("", 0, 0)]
    for cell in cells:
        for entry in entries(cell.experiment):
            attack = build(attack_classes(), entry.table, f"attacks.{entry.label}")
            together = _together(cell.config, cell.experiment.attack_stage.group_size)
            count = together[attack.grouped_by]
            jobs.append((entry.label, count, count * starts[cell.name].reply_bytes))
    return max(jobs, key=lambda job: job[2])


def _together(config: CellConfig, group_size: int) -> dict[str, int]:
    """Most captures of a job, by how an attack groups them."""
    replies = config.federation.replies
    clients = min(len(config.capture.clients) or replies, replies) + config.probes.count
    of_round = min(group_size, clients)
    rounds = len(config.captured_rounds)
    return {
        "each": 1,
        "same_weights": of_round,
        "same_client": rounds,
        "whole_run": rounds * clients,
    }
