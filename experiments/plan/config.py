"""An experiment file, read strictly: every unknown key and wrong value is one clear line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from experiments.plan.levels import Level, at_level
from experiments.plan.overrides import override
from experiments.plan.toml_source import check_values, read_toml
from fedsim.build import explain, locate, suggest
from fedsim.cell import (
    AuxiliaryConfig,
    CaptureConfig,
    ProbesConfig,
    ServerKnows,
    TaskConfig,
)
from fedsim.config_section import ConfigSection
from fedsim.errors import ConfigError
from fedsim.federation import FederationConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "it names a folder; write at most 80 letters, digits, dots, dashes and underscores"
        )
    return name


Name = Annotated[str, AfterValidator(_named)]


class AttackStage(ConfigSection):
    """``[attack_stage]``: how attacks are run.

    Attributes:
        when: ``round`` attacks a finished round while later rounds train, ``end`` after them.
        workers: attack processes at a time.
        cpus: CPUs of each on the Ray cluster.
        gpus: GPU share of each.
        threads: torch threads of each.
        time_budget: seconds until an attack has to return its best so far.
        grace: seconds after the budget until its worker is killed.
        retries: how often a job whose worker died is run again.
        group_size: most observations in one job, for attacks that batch victims.
        address: a Ray cluster to join; empty for one of our own.
    """

    when: Literal["round", "end"] = "end"
    workers: int = Field(default=2, ge=1)
    cpus: float = Field(default=1.0, gt=0)
    gpus: float = Field(default=0.0, ge=0)
    threads: int = Field(default=1, ge=1)
    time_budget: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=60.0, gt=0)
    retries: int = Field(default=1, ge=0)
    group_size: int = Field(default=16, ge=1)
    address: str = ""


class ExperimentConfig(ConfigSection):
    """One experiment, resolved: all defaults are in it.

    Attributes:
        utility_seeds: trained as those of ``seeds``, and neither captured nor attacked: they tell
            how far utility scatters, at a part of the cost.
        level: the rung of ``experiments.plan.levels`` whose options are filled in where the file
            leaves them out, and below which no cell may be. Under ``[sweep]`` each value carries
            its options.
    """

    name: Name
    level: Level | None = None
    seeds: tuple[int, ...] = (0,)
    utility_seeds: tuple[int, ...] = ()
    task: TaskConfig
    auxiliary: AuxiliaryConfig | None = None
    federation: FederationConfig = FederationConfig()
    capture: CaptureConfig = CaptureConfig()
    probes: ProbesConfig = ProbesConfig()
    server_knows: ServerKnows = ServerKnows()
    defenses: tuple[dict[str, Any], ...] = ({"name": "none"},)
    attacks: tuple[dict[str, Any], ...] = ()
    attack_stage: AttackStage = AttackStage()
    metrics: tuple[str, ...] = ()
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @field_validator("seeds", "defenses")
    @classmethod
    def _some(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("at least one is needed")
        return values

    @field_validator("seeds", "utility_seeds", "defenses", "metrics")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise ValueError("the same entry stands there twice; remove one")
        return values

    @field_validator("seeds", "utility_seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if min(seeds, default=0) < 0:
            raise ValueError("seeds are not negative; write 0 or more")
        return seeds

    @field_validator("utility_seeds")
    @classmethod
    def _others(cls, others: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if both := set(others) & set(info.data.get("seeds", ())):
            raise ValueError(f"{min(both)} is one of seeds, which are measured anyway; remove it")
        return others


class Plan(ConfigSection):
    """What one run folder holds: one experiment, or the experiments of a suite."""

    name: Name
    experiments: tuple[ExperimentConfig, ...]


def shipped() -> dict[str, Path]:
    """The experiments that come with fedsim, by name."""
    folder = Path(str(files("experiments") / "configs"))
    return {path.stem: path for path in sorted(folder.rglob("*.toml"), key=lambda path: path.stem)}


def load_plan(experiment: str, overrides: Sequence[str] = ()) -> Plan:
    """Read a file or a shipped experiment and apply ``key=value`` overrides.

    Raises:
        ConfigError: there is no such experiment, or something in it is wrong.
    """
    path = find(experiment)
    table = read_toml(path)
    if "suite" not in table:
        config = parse_experiment(override(table, overrides))
        return Plan(name=config.name, experiments=(config,))
    unknown = set(table) - {"name", "suite"}
    if unknown:
        raise ConfigError(
            f"{sorted(unknown)[0]}: a suite has only 'name' and 'suite'. "
            "Put the rest into the experiments that it names."
        )
    members = table["suite"]
    if not isinstance(members, list) or not members or not all(isinstance(m, str) for m in members):
        raise ConfigError(
            f"suite: {members!r} does not fit. Write a list of experiments, by name or file."
        )
    tables = [read_toml(find(member, near=path.parent)) for member in members]
    for member, part in zip(members, tables, strict=True):
        if "suite" in part:
            raise ConfigError(f"suite: {member!r} is a suite itself. List its experiments instead.")
    parts = [parse_experiment(override(part, overrides)) for part in tables]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ConfigError(f"suite: two experiments have the same name in {names}. Rename one.")
    try:
        return Plan(name=table.get("name", path.stem), experiments=tuple(parts))
    except ValidationError as error:
        raise ConfigError(explain(error, "")) from None


def find(experiment: str, near: Path | None = None) -> Path:
    """The file that an argument or a suite's entry names."""
    candidates = [Path(experiment)] if near is None else [near / experiment, Path(experiment)]
    for path in candidates:
        if path.suffix == ".toml" and path.is_file():
            return path
    if experiment in shipped():
        return shipped()[experiment]
    if any(path.is_file() for path in candidates):
        raise ConfigError(f"{experiment}: an experiment file ends in .toml. Rename it.")
    if experiment.endswith(".toml"):
        raise ConfigError(f"{experiment}: there is no such file. Correct the path.")
    raise ConfigError(f"{experiment!r} is no experiment. {suggest(experiment, shipped())}")


def parse_experiment(table: Mapping[str, Any]) -> ExperimentConfig:
    """Validate a table; the first fault becomes one line with its path, value and fix."""
    check_values(table, "")
    try:
        return ExperimentConfig.model_validate_json(json.dumps(at_level(table)))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    *parents, key = first["loc"]
    if first["type"] == "extra_forbidden":
        path = locate("", *first["loc"])
        model: Any = ExperimentConfig
        for part in parents:
            model = _section(model.model_fields[part].annotation)
        return f"{path}: no such option. {suggest(str(key), model.model_fields)}"
    if parents == ["sweep"] and isinstance(first["input"], dict):
        # TOML reads federation.rounds = [1, 2] as a table named federation.
        inner = f"{key}.{next(iter(first['input']), '')}"
        return f'sweep.{inner}: the whole key goes in quotes. Write "{inner}" = [1, 2].'
    return explain(error, "")


def _section(annotation: Any) -> type[BaseModel]:  # noqa: ANN401
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
