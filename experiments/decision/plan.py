"""The run folder of a calibration: an experiment whose list of defenses grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.decision.families import SearchedFamily
from experiments.plan.config import ExperimentConfig, Plan, parse_experiment
from experiments.plan.entries import entries
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.records import PRIOR_ONLY

UNDEFENDED: Mapping[str, Any] = {"name": "none"}
FEWEST_SEEDS = 3
"""Seeds under which utility is trained first, where an experiment names no ``utility_seeds``."""


def only_experiment(plan: Plan) -> ExperimentConfig:
    """The experiment of a plan.

    Raises:
        ConfigError: it has several settings, captures nothing, or no attack rebuilds rows.
    """
    if len(plan.experiments) > 1:
        raise ConfigError(
            f"{plan.name}: is a suite of {len(plan.experiments)} experiments. Calibrate them one "
            "by one."
        )
    experiment = plan.experiments[0]
    if experiment.sweep:
        key = next(iter(experiment.sweep))
        raise ConfigError(
            f"sweep.{key}: a defense is calibrated in one setting. Pass --set {key}=... to "
            "choose one."
        )
    if not experiment.capture.enabled:
        raise ConfigError("capture.enabled: is false, so that nothing can be attacked. Set true.")
    rows = [entry for entry in entries(experiment) if entry.infers == "rows"]
    if all(entry.key.attack == PRIOR_ONLY for entry in rows):
        raise ConfigError("attacks: none of them rebuilds rows. Add one under [[attacks]].")
    return experiment


def attacked(
    experiment: ExperimentConfig,
    families: Sequence[SearchedFamily],
    defenses: Iterable[Mapping[str, Any]],
) -> ExperimentConfig:
    """The experiment as it is attacked: with the blind guess, without further controls or seeds.

    Training ends with the last captured round where the defenses do not depend on how many there
    are: how far a model gets matters only where no update leaks.
    """
    attacks = list(experiment.attacks)
    if all(entry.key.attack != PRIOR_ONLY for entry in entries(experiment)):
        attacks.append({"name": PRIOR_ONLY})
    changes = {
        "attacks": attacks,
        "attack_stage.control_jobs": 0,
        "utility_seeds": [],
        "federation.rounds": last_round(experiment, families),
    }
    return with_defenses(experiment, defenses, changes)


def last_round(experiment: ExperimentConfig, families: Sequence[SearchedFamily]) -> int:
    """The round after which nothing is attacked; that of all training where noise depends on it."""
    whole, captured = experiment.federation.rounds, experiment.capture.rounds
    private = any(build_chain(family.tables, "defenses").unit is not None for family in families)
    if not captured or private or experiment.federation.schedule_over == "rounds":
        return whole
    return max(captured)


def unattacked(
    experiment: ExperimentConfig, seeds: Sequence[int], defenses: Iterable[Mapping[str, Any]]
) -> ExperimentConfig:
    """The experiment with these seeds, and the defenses beside none, trained for utility alone."""
    changes = {
        "name": f"{experiment.name}-utility",
        "seeds": list(seeds),
        "utility_seeds": [],
        "capture.enabled": False,
        "attacks": [],
    }
    return with_defenses(experiment, defenses, changes)


def utility_seeds(experiment: ExperimentConfig, most: int = FEWEST_SEEDS) -> tuple[int, ...]:
    """Seeds trained beside those that are attacked: those that are named, or up to ``most``."""
    if experiment.utility_seeds:
        return experiment.utility_seeds
    first = max(experiment.seeds) + 1
    return tuple(range(first, first + max(0, most - len(experiment.seeds))))


def with_defenses(
    experiment: ExperimentConfig,
    defenses: Iterable[Mapping[str, Any]],
    changes: Mapping[str, object],
) -> ExperimentConfig:
    """The experiment with these defenses beside none; ``changes`` are by ``section.option``."""
    table = experiment.model_dump(mode="json", exclude_none=True)
    table["defenses"] = [dict(UNDEFENDED), *map(dict, defenses)]
    for name, value in changes.items():
        section, _, option = name.rpartition(".")
        (table[section] if section else table)[option] = value
    return parse_experiment(table)
