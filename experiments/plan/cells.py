"""The cells of an experiment: one for each combination of seed, swept value and defense."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.plan.config import ExperimentConfig, Plan, parse_experiment
from experiments.plan.levels import check_levels, contradiction
from experiments.plan.overrides import set_value
from fedsim.api.cell import CellFolder
from fedsim.config.build import build, registry
from fedsim.config.cell import CellConfig
from fedsim.errors import ConfigError
from fedsim.store.files import write_json

_SWEPT = ("task", "auxiliary", "federation", "server_knows", "capture", "probes", "candidates")
_ENGINE = {"engine", "client_workers", "client_timeout", "client_gpus"}


@dataclass(frozen=True)
class Cell(CellFolder):
    """A cell's folder, the experiment that it is of, and what is simulated in it.

    Attributes:
        experiment: the experiment, with this cell's swept values filled in.
        config: everything that determines the captures.
    """

    experiment: ExperimentConfig
    config: CellConfig

    def write(self) -> None:
        """Write ``cell.json``, the only input of clients and server."""
        write_json(self.folder / "cell.json", self.config)


def make_cells(plan: Plan, run: Path, *, attacks: bool = True) -> list[Cell]:
    """All cells of a run, checked as far as possible without loading data or models.

    Values of attacks' options are, where ``attacks`` says so: that loads their code.

    Raises:
        ConfigError: a defense, attack, metric, swept value or capture option is invalid.
    """
    cells = [cell for e in plan.experiments for cell in _cells(e, run, attacks=attacks)]
    if len({cell.name for cell in cells}) < len(cells):
        raise ConfigError(
            "sweep: two cells are identical. Sweep only options that change the captures."
        )
    return cells


def _cells(experiment: ExperimentConfig, run: Path, *, attacks: bool) -> Iterator[Cell]:
    if attacks:
        from experiments.plan.entries import entries

        entries(experiment)
    chains = _chains(experiment)
    for settled in _swept(experiment):
        _check_capture(settled)
        alone = settled.capture.model_copy(update={"enabled": False})
        for seed, capture in (
            *((seed, settled.capture) for seed in settled.seeds),
            *((seed, alone) for seed in settled.utility_seeds),
        ):
            for name, chain in chains:
                config = CellConfig(
                    seed=seed,
                    task=settled.task,
                    auxiliary=settled.auxiliary,
                    federation=settled.federation,
                    capture=capture,
                    probes=settled.probes,
                    candidates=settled.candidates,
                    server_knows=settled.server_knows,
                    defense=chain,
                )
                if settled.level and (reason := contradiction(settled.level, config)):
                    raise ConfigError(reason)
                folder = run / f"{experiment.name}.{name}.{fingerprint(config)}"
                yield Cell(folder, settled, config)


def _check_capture(experiment: ExperimentConfig) -> None:
    federation, probes = experiment.federation, experiment.probes
    secure = federation.cohort > 1
    senders = federation.replies if secure else federation.clients
    for key, values, what, first, last in (
        ("rounds", experiment.capture.rounds, "rounds", 1, federation.rounds),
        ("clients", experiment.capture.clients, "cohorts" if secure else "clients", 0, senders - 1),
    ):
        for value in values:
            if not first <= value <= last:
                raise ConfigError(
                    f"capture.{key}: {value} is out of range: the {what} of this federation are "
                    f"numbered {first} to {last}. Choose among these."
                )
    if secure and probes.count:
        raise ConfigError(
            f"probes: {probes.count} probes were requested. A probe is a single client's update, "
            f"which secure aggregation over {federation.cohort} clients never reveals. "
            "Set federation.secure_aggregation = 0 or remove the probes."
        )


def _chains(experiment: ExperimentConfig) -> list[tuple[str, tuple[dict[str, Any], ...]]]:
    """Name and tables of each defense."""
    from fedsim.defenses import DEFENSES, build_chain

    known = registry(DEFENSES, "fedsim.defenses")
    numbers: dict[str, int] = {}
    chains = []
    for i, table in enumerate(experiment.defenses):
        where = f"defenses[{i}]"
        tables = chain_tables(table, where)
        if "chain" not in table:
            build(known, table, where)  # says defenses[0].std, not defenses[0].chain[0].std
        chain = build_chain(tables, f"{where}.chain")
        if (same := numbers.setdefault(chain.options_json, i)) != i:
            raise ConfigError(
                f"{where}: {chain.name} with these options is already defenses[{same}]. Remove one."
            )
        chains.append((chain.name, tables))
    return chains


def chain_tables(table: dict[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    """One defense, or ``chain = [...]`` for several in order."""
    if "chain" not in table:
        return (table,)
    parts = table["chain"]
    if len(table) > 1 or not isinstance(parts, list) or not parts:
        raise ConfigError(
            f"{where}: {table!r} is not a valid chain: its only key is chain, with a list. "
            'Write chain = [{ name = "gaussian_noise", std = 0.01 }, { name = "sign" }].'
        )
    return tuple(parts)


def _swept(experiment: ExperimentConfig) -> Iterator[ExperimentConfig]:
    table = experiment.model_dump(mode="json", exclude_none=True)
    sweep = table.pop("sweep")
    for key, values in sweep.items():
        if key == "level":
            check_levels(values)
        elif key.split(".")[0] not in _SWEPT or "." not in key:
            raise ConfigError(
                f"sweep.{key}: only options of {', '.join(_SWEPT)} can be swept. "
                "For defenses, attacks or seeds, list several of them instead."
            )
        if not values:
            raise ConfigError(f"sweep.{key}: the list of values is empty. Add one.")
        for i, value in enumerate(values):
            if value in values[:i]:
                raise ConfigError(f"sweep.{key}: {value!r} appears twice. Remove one.")
    for choice in itertools.product(*sweep.values()):
        settled = json.loads(json.dumps(table))
        for key, value in zip(sweep, choice, strict=True):
            options = value if key == "level" else {key: value}
            for name, chosen in options.items():
                set_value(settled, name, chosen, f"sweep.{key}")
        yield parse_experiment(settled)


def fingerprint(config: CellConfig) -> str:
    """Eight hexadecimal digits that identify everything that determines the captures.

    The engine and its workers are left out because they do not change the captures; of the GPUs
    only whether there are any counts, as sums differ between the devices. Defaults are left out so
    that options added by a later fedsim do not rename the cells of older runs.
    """
    table = config.model_dump(mode="json", exclude_defaults=True)
    for key in _ENGINE:
        table["federation"].pop(key, None)
    if config.federation.client_gpus:
        table["federation"]["client_gpus"] = True
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
