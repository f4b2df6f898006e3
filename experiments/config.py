"""An experiment file, read strictly: every unknown key and wrong value is one clear line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from fedsim.build import explain, locate, suggest
from fedsim.cell import (
    AuxiliaryConfig,
    CaptureConfig,
    FederationConfig,
    Section,
    ServerKnows,
    TaskConfig,
)
from fedsim.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class AttackStage(Section):
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


class ExperimentConfig(Section):
    """One experiment, resolved: all defaults are in it."""

    name: str
    seeds: tuple[int, ...] = (0,)
    task: TaskConfig
    auxiliary: AuxiliaryConfig | None = None
    federation: FederationConfig = FederationConfig()
    capture: CaptureConfig = CaptureConfig()
    server_knows: ServerKnows = ServerKnows()
    defenses: tuple[dict[str, Any], ...] = ({"name": "none"},)
    attacks: tuple[dict[str, Any], ...] = ()
    attack_stage: AttackStage = AttackStage()
    metrics: tuple[str, ...] = ()
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("a name holds letters, digits, dots, dashes and underscores")
        return name

    @field_validator("seeds", "defenses")
    @classmethod
    def _some(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("at least one is needed")
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise ValueError("the same entry stands there twice; remove one")
        return values

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if min(seeds) < 0:
            raise ValueError("seeds are not negative")
        return seeds


class Plan(Section):
    """What one run folder holds: one experiment, or the experiments of a suite."""

    name: str
    experiments: tuple[ExperimentConfig, ...]


def shipped() -> dict[str, Path]:
    """The experiments that come with fedsim, by name."""
    folder = Path(str(files("experiments") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_plan(experiment: str, overrides: Sequence[str] = ()) -> Plan:
    """Read a file or a shipped experiment and apply ``key=value`` overrides.

    Raises:
        ConfigError: there is no such experiment, or something in it is wrong.
    """
    path = find(experiment)
    table = read_toml(path)
    if "suite" not in table:
        config = parse_experiment(_override(table, overrides))
        return Plan(name=config.name, experiments=(config,))
    unknown = set(table) - {"name", "suite"}
    if unknown:
        raise ConfigError(
            f"{sorted(unknown)[0]}: a suite has only 'name' and 'suite'. "
            "Put the rest into the experiments that it names."
        )
    members = table["suite"]
    if not isinstance(members, list) or not members or not all(isinstance(m, str) for m in members):
        raise ConfigError(f"suite: expected a list of experiments, got {members!r}.")
    tables = [read_toml(find(member, near=path.parent)) for member in members]
    parts = [parse_experiment(_override(part, overrides)) for part in tables]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ConfigError(f"suite: two experiments have the same name in {names}. Rename one.")
    return Plan(name=str(table.get("name", path.stem)), experiments=tuple(parts))


def find(experiment: str, near: Path | None = None) -> Path:
    """The file that an argument or a suite's entry names."""
    candidates = [Path(experiment)] if near is None else [near / experiment, Path(experiment)]
    for path in candidates:
        if path.suffix == ".toml" and path.is_file():
            return path
    if experiment in shipped():
        return shipped()[experiment]
    if experiment.endswith(".toml"):
        raise ConfigError(f"{experiment}: there is no such file. Correct the path.")
    raise ConfigError(f"{experiment!r} is no experiment. {suggest(experiment, shipped())}")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; a syntax error names file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}. Correct the file.") from None


def parse_experiment(table: Mapping[str, Any]) -> ExperimentConfig:
    """Validate a table; the first fault becomes one line with its path, value and fix."""
    try:
        return ExperimentConfig.model_validate_json(json.dumps(table, default=str))
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
    if first["type"] == "missing":
        return f"{locate('', *first['loc'])}: is missing. Add it to the experiment."
    return explain(error, "")


def _section(annotation: Any) -> type[BaseModel]:  # noqa: ANN401
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))


def _override(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {override!r}: expected key=value, as federation.rounds=5.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # a bare word is a string
        set_value(table, key, value)
    return table


def set_value(table: dict[str, Any], key: str, value: object) -> None:
    """Set ``federation.rounds`` or ``attacks.0.steps`` in nested tables and lists, in place."""
    *parents, last = key.split(".")
    node: Any = table
    for part in parents:
        if isinstance(node, list):
            node = node[_index(key, part, node)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {key}: {part!r} is a value, not a table. Correct the key.")
    if isinstance(node, list):
        node[_index(key, last, node)] = value
    else:
        node[last] = value


def _index(key: str, part: str, node: list[Any]) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(
            f"--set {key}: {part!r} is no entry of a list of {len(node)}. Count from 0."
        )
    return int(part)
