"""Private rows behind each reply of a cell, before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedsim.config.cell import CellConfig
from fedsim.data.partition import partition
from fedsim.local.steps import schedule
from fedsim.participation import cohorts_of, draw


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """What one reply is about.

    Attributes:
        rows: positions among the private rows; of all clients of a cohort.
        steps: local steps.
    """

    rows: tuple[int, ...]
    steps: int


def replies(config: CellConfig, labels: Tensor) -> Iterator[ExpectedReply]:
    """The replies that the server will keep, by round and client, as the clients draw them."""
    run, seed = config.federation, config.seed
    parts = partition(labels, run.clients, run, seed)
    for round_ in config.captured_rounds:
        drawn = draw(seed, round_, run.clients, run.participation)
        groups: Sequence[tuple[int, ...]] = [(client,) for client in drawn]
        if run.cohort > 1:
            groups = cohorts_of(run, seed, round_)
        elif config.capture.clients:
            groups = [group for group in groups if group[0] in config.capture.clients]
        for group in groups:
            rows: list[int] = []
            steps = 0
            for client in group:
                plan = schedule(run, seed, len(parts[client]), round_, client)
                used = dict.fromkeys(position for step in plan for position in step)
                rows += [parts[client][position] for position in used]
                steps = max(steps, len(plan))
            yield ExpectedReply(tuple(rows), steps)
