"""``fedsim show --all``: the cells, threat model and cost of an experiment, without running it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from attacks import attack_classes
from attacks.feasibility import Feasibility
from experiments.plan.cells import Cell, make_cells
from experiments.plan.config import Plan
from experiments.plan.entries import entries
from experiments.plan.levels import level_of
from experiments.plan.rehearsal import Start, rehearse
from experiments.preview.brief import captures as captures_of
from experiments.preview.feasibility import feasible, replies
from experiments.wording.catalogue import sentence
from experiments.wording.threat import ThreatModel, threat_model
from fedsim.config.build import build
from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.models.layers import has_train_mode
from fedsim.records import PRIOR_ONLY


@dataclass(frozen=True)
class PlannedCost:
    """Resources that one experiment needs.

    Attributes:
        parameters: values in the global model, parameters and buffers.
        captures: number of replies that the server keeps, including those of probes.
        probes: number of captured replies of probes.
        jobs: number of pairs of an attack and a capture.
        controls: upper bound on the further jobs that feed an attack with another client's reply.
        disk: upper bound on the bytes of the captures, without frozen parameters.
        job: the attack whose jobs hold most, the updates of one, and their bytes.
    """

    parameters: int
    captures: int
    probes: int
    jobs: int
    controls: int
    disk: int
    job: tuple[str, int, int]

    def text(self) -> str:
        """A few short lines."""
        probes = f" ({self.probes} by probes)" if self.probes else ""
        return (
            f"{self.captures} captures{probes} of {self.parameters:,} values: "
            f"{self.disk / 1e6:,.0f} MB on disk at most\n"
            f"{self.jobs} attacked captures{self._controls()}{self._memory()}"
        )

    def _controls(self) -> str:
        more = f", and at most {self.controls} again on another client's reply, for the baseline"
        return more if self.controls else ""

    def _memory(self) -> str:
        attack, _, held = self.job
        largest = f"; the largest job ({attack}) holds updates of {held / 1e6:,.1f} MB"
        return f"{largest} beside its search" if attack else ""


@dataclass(frozen=True)
class ShownPart:
    """One experiment of the plan.

    Attributes:
        config: the resolved experiment, as TOML.
        modeless: models in train mode that have neither dropout nor batch statistics.
        idle: what else the experiment asks for without effect, in sentences.
        feasibility: that of each exact attack, by cell of the first seed.
    """

    config: str
    cells: tuple[Cell, ...]
    threat: ThreatModel
    modeless: tuple[str, ...]
    idle: tuple[str, ...]
    feasibility: dict[str, dict[str, Feasibility]]
    cost: PlannedCost


@dataclass(frozen=True)
class ExperimentDescription:
    """The whole plan."""

    name: str
    parts: tuple[ShownPart, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "name": self.name,
            "experiments": [
                {
                    "config": part.config,
                    "cells": [cell.name for cell in part.cells],
                    "levels": {cell.name: level_of(cell.config) for cell in part.cells},
                    "train_mode_without_effect": part.modeless,
                    "without_effect": part.idle,
                    "threat_model": {
                        "granted": part.threat.granted,
                        "withheld": part.threat.withheld,
                        "varied": part.threat.varied,
                    },
                    "limits": {
                        cell: [
                            {"attack": name, **asdict(feasibility)}
                            for name, feasibility in by_attack.items()
                        ]
                        for cell, by_attack in part.feasibility.items()
                    },
                    "cost": asdict(part.cost),
                }
                for part in self.parts
            ],
        }

    def text(self) -> str:
        """For a terminal."""
        return "\n\n".join(_text(part) for part in self.parts)


def _text(part: ShownPart) -> str:
    threat = part.threat
    lines = [part.config.strip(), "", "# cells, each with its realism level"]
    lines += [f"{cell.name}  {level_of(cell.config)}" for cell in part.cells]
    lines += [
        f"train mode has no effect on {model}, which has neither dropout nor batch statistics: "
        "its gradients equal those of eval mode"
        for model in part.modeless
    ]
    lines += [*part.idle]
    lines.append("")
    lines += ["# threat model", sentence("threat.attacker")]
    for heading, facts in (
        ("knows", threat.granted),
        ("does not know", threat.withheld),
        ("knows in some cells", threat.varied),
    ):
        if facts:
            lines.append(f"{heading}: {'; '.join(facts)}")
    lines += [f"{what}: {value}" for what, value in threat.protocol]
    lines += [
        f"out of scope: {sentence('threat.out_of_scope')}",
        "",
        "# feasibility of exact attacks, from the content of a reply",
    ]
    for same, cells in _alike(part.feasibility).items():
        lines += [*cells, *(f"  {line}" for line in same)]
    lines += ["", "# cost", part.cost.text()]
    return "\n".join(lines)


def _alike(cells: dict[str, dict[str, Feasibility]]) -> dict[tuple[str, ...], list[str]]:
    """Cells grouped by their lines of feasibility."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for cell, by_attack in cells.items():
        lines = tuple(feasibility.text(attack) for attack, feasibility in by_attack.items())
        alike.setdefault(lines, []).append(cell)
    return alike


def describe(plan: Plan) -> ExperimentDescription:
    """Describe a plan. Loads data and builds models, but trains nothing."""
    cells = make_cells(plan, Path("runs") / plan.name)
    starts = rehearse(cells)
    parts = []
    for experiment in plan.experiments:
        mine = [cell for cell in cells if cell.experiment.name == experiment.name]
        config = tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))
        threat = threat_model([cell.config for cell in mine])
        by_cell = {
            cell.name: feasible(
                cell.config, start.setting.task, start.setting.holdings.private, start.weights
            )
            for cell in mine
            if cell.config.seed == experiment.seeds[0]
            for start in [starts[cell.name]]
        }
        modeless = _modeless(mine, starts)
        idle = tuple(_idle(mine, starts))
        cost = _cost(mine, starts)
        parts.append(ShownPart(config, tuple(mine), threat, modeless, idle, by_cell, cost))
    return ExperimentDescription(plan.name, tuple(parts))


def _modeless(cells: list[Cell], starts: dict[str, Start]) -> tuple[str, ...]:
    tasks = {
        cell.config.task.model: starts[cell.name].setting.task
        for cell in cells
        if cell.config.federation.train_mode
    }
    return tuple(name for name, task in tasks.items() if not has_train_mode(task.blank()))


def _idle(cells: list[Cell], starts: dict[str, Start]) -> Iterator[str]:
    """Options of FedAvg's local training under FedSGD, and attacks on another kind of data."""
    default = FederationConfig()
    for name in ("optimizer", "momentum", "weight_decay", "local_steps", "local_epochs"):
        runs = [cell.config.federation for cell in cells]
        values = {getattr(run, name): run for run in runs if run.protocol == "fedsgd"}
        for value in values.keys() - {getattr(default, name)}:
            yield (
                f"federation.{name} = {json.dumps(value)} has no effect under FedSGD, whose "
                "clients send a gradient: set protocol = 'fedavg'"
            )
    modalities = {starts[cell.name].setting.task.modality for cell in cells}
    for entry in entries(cells[0].experiment):
        takes = attack_classes()[str(entry.table["name"])].modalities
        for modality in sorted(modalities - takes):
            yield (
                f"{entry.label} reconstructs {' and '.join(sorted(takes))}, and is skipped on this "
                f"task, which is {modality}"
            )


def _cost(cells: list[Cell], starts: dict[str, Start]) -> PlannedCost:
    weights = [starts[cell.name].weights.values() for cell in cells]
    parameters = max(sum(value.numel() for value in values) for values in weights)
    captures = sum(captures_of(cell.config) for cell in cells)
    captured = sum(captures_of(cell.config) * starts[cell.name].reply_bytes for cell in cells)
    models = sum(
        len(cell.config.captured_rounds)
        * sum(value.nbytes for value in starts[cell.name].weights.values())
        for cell in cells
    )
    probes = sum(len(cell.config.captured_rounds) * cell.config.probes.count for cell in cells)
    attacks = entries(cells[0].experiment)
    again = sum(_fed_again(cell, starts[cell.name]) for cell in cells)
    return PlannedCost(
        parameters,
        captures,
        probes,
        captures * len(attacks),
        again * sum(entry.key.attack != PRIOR_ONLY for entry in attacks),
        captured + models,
        heaviest_job(cells, starts),
    )


def _fed_again(cell: Cell, start: Start) -> int:
    """Control jobs of an attack, at most; 0 if clients do not differ in granted facts."""
    config, holdings = cell.config, start.setting.holdings
    sizes = {len(reply.rows) for reply in replies(config, holdings.private.labels)}
    texts = start.setting.task.modality == "text"
    knows = config.server_knows
    uneven = knows.num_examples and len(sizes) > 1
    differ = knows.labels or uneven or (texts and knows.lengths)
    return captures_of(config) * cell.experiment.attack_stage.control_jobs if differ else 0


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
