"""The schema of an experiment file. Every unknown key or wrong value gives a one-line error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from experiments.plan.levels import Level, at_level
from experiments.plan.overrides import override
from fedsim.config.build import explain, explain_one, locate, nearest, suggest
from fedsim.config.cell import (
    AuxiliaryConfig,
    CandidatesConfig,
    CaptureConfig,
    ProbesConfig,
    ServerKnows,
    TaskConfig,
)
from fedsim.config.federation import FederationConfig
from fedsim.config.named_code import allow
from fedsim.config.section import ConfigSection
from fedsim.config.toml_source import check_values, read_toml
from fedsim.errors import ConfigError, ConfigErrors

if TYPE_CHECKING:
    from fedsim.records import Modality  # imports torch

Names: TypeAlias = Callable[[Mapping[str, Any]], Sequence[str]]
"""Finds names in an experiment file that are not known, a message each."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "it names a folder; use at most 80 letters, digits, dots, dashes and underscores"
        )
    return name


Name = Annotated[str, AfterValidator(_named)]


class AttackStage(ConfigSection):
    """``[attack_stage]``: workers, resources and time limits of the attacks.

    Attributes:
        when: ``round`` attacks each round as soon as it is done, on Ray while later rounds train,
            in-process before the next one; ``end`` waits for the whole training.
        workers: number of attack processes at a time.
        cpus: CPUs per attack process on the Ray cluster.
        gpus: GPUs per attack process; may be a fraction.
        threads: torch threads per attack process.
        tf32: multiply and convolve in TF32 on a GPU: faster, and too inexact for certificates.
        time_budget: seconds after which an attack must return its best guess so far; an attack over
            rounds shares them among all rounds of a client.
        grace: further seconds after which the process is killed.
        retries: number of times a job is run again after its process died.
        control_jobs: further runs of an attack on each capture, fed with the replies of other
            clients, where clients differ in the facts that are granted, such as labels. Where they
            do not, the attacks on the others serve as two controls, at no cost.
        group_size: largest number of captures in one job, for attacks that batch their victims.
        address: address of a Ray cluster to join; empty starts a local one.
    """

    when: Literal["round", "end"] = "end"
    workers: int = Field(default=2, ge=1)
    cpus: float = Field(default=1.0, gt=0)
    gpus: float = Field(default=0.0, ge=0)
    threads: int = Field(default=1, ge=1)
    tf32: bool = False
    time_budget: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=60.0, gt=0)
    retries: int = Field(default=1, ge=0)
    control_jobs: int = Field(default=1, ge=0, le=2)
    group_size: int = Field(default=16, ge=1)
    address: str = ""


class VerdictRule(ConfigSection):
    """``[verdict]``: the smallest leak that counts.

    A lead over every blind guess counts as a leak if it is surely above the smallest effect, and as
    none if it is surely below. Exact examples and certificates count whatever they are.

    Attributes:
        psnr: smallest effect on images, in dB of their mean PSNR.
        rouge: smallest effect on texts, in mean ROUGE-L, and on shares of words and labels.
        clients: fewest clients with which a mean decides a verdict.
    """

    psnr: float = Field(default=1.0, gt=0)
    rouge: float = Field(default=0.05, gt=0, lt=1)
    clients: int = Field(default=5, ge=5)

    def smallest(self, modality: Modality) -> float:
        """The smallest effect in units of the main metric."""
        return self.psnr if modality == "image" else self.rouge


class ExperimentConfig(ConfigSection):
    """One experiment, resolved: every default is filled in.

    Attributes:
        utility_seeds: additional seeds that are trained but neither captured nor attacked. They
            show how much utility varies, at a fraction of the cost.
        level: realism level, L1 to L4 (see ``experiments.plan.levels``). It sets the options that
            the file leaves out, and a cell below this level is an error. It can be swept.
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
    candidates: CandidatesConfig = CandidatesConfig()
    server_knows: ServerKnows = ServerKnows()
    defenses: tuple[dict[str, Any], ...] = ({"name": "none"},)
    attacks: tuple[dict[str, Any], ...] = ()
    attack_stage: AttackStage = AttackStage()
    metrics: tuple[str, ...] = ()
    verdict: VerdictRule = VerdictRule()
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @field_validator("seeds", "defenses")
    @classmethod
    def _some(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("the list is empty; give at least one entry")
        return values

    @field_validator("seeds", "utility_seeds", "defenses", "metrics")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise ValueError("the same entry appears twice; remove one")
        return values

    @field_validator("seeds", "utility_seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if min(seeds, default=0) < 0:
            raise ValueError("seeds cannot be negative; write 0 or more")
        return seeds

    @field_validator("utility_seeds")
    @classmethod
    def _others(cls, others: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if both := set(others) & set(info.data.get("seeds", ())):
            raise ValueError(
                f"{min(both)} is already one of seeds, which are measured too; remove it"
            )
        return others


class Plan(ConfigSection):
    """The content of one run folder: a single experiment, or those of a suite."""

    name: Name
    experiments: tuple[ExperimentConfig, ...]


def shipped() -> dict[str, Path]:
    """Paths of the experiments that ship with fedsim, by name."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.stem: path for path in sorted(folder.rglob("*.toml"), key=lambda path: path.stem)}


def load_plan(
    experiment: str, overrides: Sequence[str] = (), unknown: Names = lambda _: ()
) -> Plan:
    """Read a file or a shipped experiment, and apply ``key=value`` overrides.

    Raises:
        ConfigError: the experiment does not exist or is invalid.
    """
    path = find(experiment)
    table = read_toml(path)
    if "suite" not in table:
        config = parse_experiment(override(table, overrides), unknown)
        _allow_code([config])
        return Plan(name=config.name, experiments=(config,))
    if others := sorted(set(table) - {"name", "suite"}):
        raise ConfigError(
            f"{others[0]}: a suite takes only 'name' and 'suite'. "
            "Move other options into the experiments that it lists."
        )
    members = table["suite"]
    if not isinstance(members, list) or not members or not all(isinstance(m, str) for m in members):
        raise ConfigError(
            f"suite: {members!r} is not a list of experiments. List their names or files."
        )
    tables = [read_toml(find(member, near=path.parent)) for member in members]
    for member, part in zip(members, tables, strict=True):
        if "suite" in part:
            raise ConfigError(f"suite: {member!r} is itself a suite. List its experiments instead.")
    parts = [parse_experiment(override(part, overrides), unknown) for part in tables]
    _allow_code(parts)
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ConfigError(f"suite: two experiments have the same name in {names}. Rename one.")
    try:
        return Plan(name=table.get("name", path.stem), experiments=tuple(parts))
    except ValidationError as error:
        raise ConfigError(explain(error, "")) from None


def _allow_code(parts: Sequence[ExperimentConfig]) -> None:
    """The user named the file, and with it the code that makes its models."""
    for part in parts:
        for name in (part.task.model, *part.sweep.get("task.model", ())):
            allow(str(name))


def find(experiment: str, near: Path | None = None) -> Path:
    """The path of an experiment named on the command line or in a suite."""
    candidates = [Path(experiment)] if near is None else [near / experiment, Path(experiment)]
    for path in candidates:
        if path.suffix == ".toml" and path.is_file():
            return path
    if experiment in shipped():
        return shipped()[experiment]
    if any(path.is_file() for path in candidates):
        raise ConfigError(f"{experiment}: an experiment file must end in .toml. Rename it.")
    if experiment.endswith(".toml"):
        raise ConfigError(f"{experiment}: the file does not exist. Correct the path.")
    if "/" in experiment:
        raise ConfigError(
            f"{experiment}: no such folder of a run or of captures, nor experiment file. "
            "Correct the path."
        )
    known = suggest(experiment, shipped())
    if near is None and not nearest(experiment, shipped()):  # a folder was meant as likely
        known = (
            "Nor is there a folder of this name. fedsim list experiments names the shipped ones."
        )
    raise ConfigError(f"{experiment!r} is not an experiment. {known}")


def parse_experiment(table: Mapping[str, Any], unknown: Names = lambda _: ()) -> ExperimentConfig:
    """Validate a table of an experiment file, with the names in it.

    Raises:
        ConfigErrors: a line for each mistake, key, value, remedy: unknown keys first, missing last.
    """
    check_values(table, "")
    order, faults = {"extra_forbidden": -1, "missing": 1}, list[ErrorDetails]()
    try:
        experiment = ExperimentConfig.model_validate_json(json.dumps(at_level(table)))
    except ValidationError as error:
        faults = sorted(error.errors(), key=lambda fault: order.get(fault["type"], 0))
    if lines := [*unknown(table), *map(_explain, faults)]:
        raise ConfigErrors(lines)
    return experiment


def _explain(first: ErrorDetails) -> str:
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
        return f'sweep.{inner}: a swept key must be quoted as a whole. Write "{inner}" = [1, 2].'
    return explain_one(first, "")


def _section(annotation: Any) -> type[BaseModel]:  # noqa: ANN401
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
