"""What an experiment would do, before anything of it is run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import tomli_w

from experiments.cells import Cell, make_cells
from experiments.config import Plan
from experiments.entries import entries
from experiments.rehearsal import rehearse
from experiments.threat import ATTACKER, OUT_OF_SCOPE, ThreatModel, threat_model
from fedsim.cell import CellConfig
from fedsim.setting import load_setting
from fedsim.tasks import initial_weights


@dataclass(frozen=True)
class Cost:
    """What one experiment needs.

    Attributes:
        parameters: values that cross the wire once, parameters and buffers.
        captures: replies that the server keeps, those of probes among them.
        probes: replies of probes.
        jobs: attacks on single captures; an attack may take several captures in one job.
        disk: bytes of the captures at most; frozen parameters are not sent.
        seconds: wall time at most of the attack stage, if every job used up its budget.
    """

    parameters: int
    captures: int
    probes: int
    jobs: int
    disk: int
    seconds: float

    def text(self) -> str:
        """Three short lines."""
        probes = f" ({self.probes} by probes)" if self.probes else ""
        hours = self.seconds / 3600
        return (
            f"{self.captures} captures{probes} of {self.parameters:,} values: "
            f"{self.disk / 1e6:,.0f} MB on disk at most\n"
            f"{self.jobs} attacked captures, {hours:.1f} h at most by the time budgets"
        )


@dataclass(frozen=True)
class Part:
    """One experiment of the plan."""

    config: str
    cells: tuple[Cell, ...]
    threat: ThreatModel
    cost: Cost


@dataclass(frozen=True)
class Description:
    """The whole plan."""

    name: str
    parts: tuple[Part, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "name": self.name,
            "experiments": [
                {
                    "config": part.config,
                    "cells": [cell.name for cell in part.cells],
                    "threat_model": {
                        "granted": part.threat.granted,
                        "withheld": part.threat.withheld,
                        "varied": part.threat.varied,
                    },
                    "cost": vars(part.cost),
                }
                for part in self.parts
            ],
        }

    def text(self) -> str:
        """For a terminal."""
        return "\n\n".join(_text(part) for part in self.parts)


def _text(part: Part) -> str:
    threat = part.threat
    lines = [part.config.strip(), "", "# cells", *(f"{cell.name}" for cell in part.cells), ""]
    lines += ["# threat model", ATTACKER]
    for heading, facts in (
        ("knows", threat.granted),
        ("does not know", threat.withheld),
        ("knows in some cells", threat.varied),
    ):
        if facts:
            lines.append(f"{heading}: {'; '.join(facts)}")
    lines += [f"{what}: {value}" for what, value in threat.protocol]
    lines += [f"out of scope: {OUT_OF_SCOPE}", "", "# cost", part.cost.text()]
    return "\n".join(lines)


def describe(plan: Plan) -> Description:
    """Resolve everything; loads data and builds the models, and trains nothing."""
    cells = make_cells(plan, Path("runs") / plan.name)
    rehearse(cells)
    parts = []
    for experiment in plan.experiments:
        mine = [cell for cell in cells if cell.experiment.name == experiment.name]
        config = tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))
        threat = threat_model([cell.config for cell in mine])
        parts.append(Part(config, tuple(mine), threat, _cost(mine)))
    return Description(plan.name, tuple(parts))


def _cost(cells: list[Cell]) -> Cost:
    parameters, sent = 0, 0
    for _, same in groupby(cells, key=lambda cell: cell.config.task):
        first = next(same).config
        task = load_setting(first).task
        tensors = initial_weights(task, first.task, first.seed).values()
        parameters = max(parameters, sum(value.numel() for value in tensors))
        sent = max(sent, sum(value.nbytes for value in tensors))
    captures = sum(_captures(cell.config) for cell in cells)
    attacked = sum(_captures(cell.config) * len(entries(cell.experiment)) for cell in cells)
    models = sum(_rounds(cell.config) for cell in cells)
    probes = sum(_rounds(cell.config) * cell.config.probes.count for cell in cells)
    stage = cells[0].experiment.attack_stage
    seconds = attacked * stage.time_budget / stage.workers
    return Cost(parameters, captures, probes, attacked, (captures + models) * sent, seconds)


def _rounds(config: CellConfig) -> int:
    rounds = range(1, config.federation.rounds + 1)
    return sum(not config.capture.rounds or r in config.capture.rounds for r in rounds)


def _captures(config: CellConfig) -> int:
    """An upper bound where only some clients are kept and only some take part."""
    taking_part = max(1, round(config.federation.participation * config.federation.clients))
    kept = len(config.capture.clients) or taking_part
    return _rounds(config) * (min(kept, taking_part) + config.probes.count)
