"""The families of an experiment's defenses, and the run folder that grows by their members."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.plan.cells import chain_tables
from experiments.plan.config import ExperimentConfig, Plan, parse_experiment
from experiments.plan.entries import entries
from experiments.wording.names import defense_name
from fedsim.config.build import build, registry, suggest
from fedsim.defenses import DEFENSES, build_chain
from fedsim.defenses.base import Defense
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError
from fedsim.records import PRIOR_ONLY


@dataclass(frozen=True)
class SearchedFamily:
    """A defense, or a chain of them, with one option left to choose.

    Attributes:
        tables: name and options of each defense, the strength as the experiment had it.
        part: the defense whose strength is searched; None where none has any.
        strength: its option and range; None for a family of a single member.
        values: the strengths that are told apart, the weakest first; a single None without any.
    """

    tables: tuple[Mapping[str, Any], ...]
    part: int | None
    strength: Strength | None
    values: tuple[float | None, ...]

    @property
    def name(self) -> str:
        """The names of the chain joined by ``+``."""
        return "+".join(str(table["name"]) for table in self.tables)

    @property
    def title(self) -> str:
        """Display name with the options that are fixed, such as ``DP-SGD (clip=5)``."""
        fixed = [dict(table) for table in self.tables]
        if self.part is not None and self.strength is not None:
            fixed[self.part].pop(self.strength.option, None)
        return defense_name(self.name, json.dumps(fixed))

    def defense(self, index: int) -> dict[str, Any]:
        """The entry of an experiment's ``defenses`` at one strength."""
        tables = [dict(table) for table in self.tables]
        if self.part is not None and self.strength is not None:
            tables[self.part][self.strength.option] = self.values[index]
        return tables[0] if len(tables) == 1 else {"chain": tables}

    def member(self, index: int) -> str:
        """Display name at one strength."""
        entry = self.defense(index)
        return defense_name(self.name, json.dumps(entry.get("chain", [entry])))


def families(
    experiment: ExperimentConfig, ranges: Mapping[str, tuple[float, float]], count: int
) -> tuple[SearchedFamily, ...]:
    """Each family of the experiment's defenses once; undefended cells are none.

    Args:
        experiment: its strengths are not used, only what they belong to.
        ranges: name of a defense -> weakest and strongest value in place of its own.
        count: how many strengths to tell apart.

    Raises:
        ConfigError: there is no family, or a range is of a defense without a strength or of none
            that the experiment has.
    """
    by_title: dict[str, SearchedFamily] = {}
    for i, entry in enumerate(experiment.defenses):
        tables = chain_tables(entry, f"defenses[{i}]")
        if [table.get("name") for table in tables] == ["none"]:
            continue
        family = _family(tables, ranges, count, f"defenses[{i}]")
        by_title.setdefault(family.title, family)
    if not by_title:
        raise ConfigError(
            "defenses: the experiment names none to search. Add { name = 'gaussian_noise', "
            "std = 0.1 }, for example; the strength that stands there does not matter."
        )
    searched = {
        str(other.tables[other.part]["name"])
        for other in by_title.values()
        if other.part is not None
    }
    for name in ranges:
        if name not in searched:
            raise ConfigError(f"--range {name}: is not searched. {suggest(name, searched)}")
    return tuple(by_title.values())


def parse_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Read ``--range gaussian_noise=0.001:1``: the weakest and the strongest value.

    Raises:
        ConfigError: a text is not of that form, or names a defense twice.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, ends = text.partition("=")
        weakest, _, strongest = ends.partition(":")
        try:
            pair = float(weakest), float(strongest)
        except ValueError:
            raise ConfigError(
                f"--range {text!r}: expected name=weakest:strongest, "
                "e.g. --range gaussian_noise=0.001:1."
            ) from None
        if name in ranges:
            raise ConfigError(f"--range {name}: stands there twice. Remove one.")
        ranges[name] = pair
    return ranges


def _family(
    tables: tuple[dict[str, Any], ...],
    ranges: Mapping[str, tuple[float, float]],
    count: int,
    where: str,
) -> SearchedFamily:
    known: dict[str, type[Defense]] = registry(DEFENSES, "fedsim.defenses")
    built = [build(known, table, where) for table in tables]
    searched = [i for i, defense in enumerate(built) if defense.strength is not None]
    if not searched:
        return SearchedFamily(tables, None, None, (None,))
    part = searched[-1]  # of clipping and noise, the noise
    strength = built[part].strength
    assert strength is not None
    name = str(tables[part]["name"])
    if name in ranges:
        try:
            strength = replace(strength, weakest=ranges[name][0], strongest=ranges[name][1])
        except ValueError as error:
            raise ConfigError(f"--range {name}: {error}. Write another one.") from None
    values = strength.values(count)
    for value in (values[0], values[-1]):
        build(known, {**tables[part], strength.option: value}, f"--range {name}")
    return SearchedFamily(tables, part, strength, values)


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
