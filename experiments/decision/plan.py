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
    table = experiment.model_dump(mode="json", exclude_none=True)
    if all(entry.key.attack != PRIOR_ONLY for entry in entries(experiment)):
        table["attacks"] = [*table["attacks"], {"name": PRIOR_ONLY}]
    table["attack_stage"]["control_jobs"] = 0
    table["defenses"] = [dict(UNDEFENDED), *map(dict, defenses)]
    table["utility_seeds"] = []
    table["federation"]["rounds"] = last_round(experiment, families)
    return parse_experiment(table)


def last_round(experiment: ExperimentConfig, families: Sequence[SearchedFamily]) -> int:
    """The round after which nothing is attacked; that of all training where noise depends on it."""
    whole, captured = experiment.federation.rounds, experiment.capture.rounds
    private = any(build_chain(family.tables, "defenses").unit is not None for family in families)
    if not captured or private or experiment.federation.schedule_over == "rounds":
        return whole
    return max(captured)


def trained(
    experiment: ExperimentConfig,
    families: Sequence[SearchedFamily],
    defenses: Iterable[Mapping[str, Any]],
    most: int,
) -> ExperimentConfig | None:
    """What remains to be trained for the utility of that many seeds, without captures; or None."""
    seeds = utility_seeds(experiment, most)
    if last_round(experiment, families) < experiment.federation.rounds:
        seeds = (*experiment.seeds, *seeds)
    return unattacked(experiment, seeds, defenses) if seeds else None


def unattacked(
    experiment: ExperimentConfig, seeds: Sequence[int], defenses: Iterable[Mapping[str, Any]]
) -> ExperimentConfig:
    """The experiment with these seeds, and the defenses beside none, trained for utility alone."""
    table = experiment.model_dump(mode="json", exclude_none=True)
    table["name"] = f"{experiment.name}-utility"
    table["seeds"], table["utility_seeds"] = list(seeds), []
    table["capture"]["enabled"] = False
    table["attacks"] = []
    table["defenses"] = [dict(UNDEFENDED), *map(dict, defenses)]
    return parse_experiment(table)


def utility_seeds(experiment: ExperimentConfig, most: int = FEWEST_SEEDS) -> tuple[int, ...]:
    """Seeds trained beside those that are attacked: those that are named, or up to ``most``."""
    if experiment.utility_seeds:
        return experiment.utility_seeds
    first = max(experiment.seeds) + 1
    return tuple(range(first, first + max(0, most - len(experiment.seeds))))


def chosen(experiment: ExperimentConfig, defense: Mapping[str, Any]) -> ExperimentConfig:
    """The experiment with the chosen defense beside none."""
    table = experiment.model_dump(mode="json", exclude_none=True)
    table["name"] = f"{experiment.name}-chosen"
    table["defenses"] = [dict(UNDEFENDED), dict(defense)]
    return parse_experiment(table)
