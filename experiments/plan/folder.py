"""The run folder: one plan, its cells, and where everything came from."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tomli_w
from pydantic import ValidationError

from experiments.plan.cells import Cell, fingerprint, make_cells
from experiments.plan.config import Plan, VerdictRule
from experiments.plan.overrides import override
from fedsim import __version__
from fedsim.api.run import RunFolder, check_version, check_whole, read_provenance, seal_of
from fedsim.config.build import explain
from fedsim.config.cell import CellConfig
from fedsim.errors import ConfigError, StoreError
from fedsim.store.files import SCHEMA, digest, read_record, write_bytes, write_json
from fedsim.store.plain_files import check_path
from fedsim.visible import redacted, say

RunStage: TypeAlias = Literal["simulate", "attack", "score", "report"]
STAGES: tuple[RunStage, ...] = ("simulate", "attack", "score", "report")
_THEN = ", then "


@dataclass(frozen=True)
class Run(RunFolder):
    """A run folder and the plan that it was made from."""

    plan: Plan
    cells: tuple[Cell, ...]

    @classmethod
    def create(cls, plan: Plan, root: Path) -> Run:
        """Make the folder, or go on with one of the same name; finished cells are kept."""
        run = cls.plan_at(plan, root)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--out {root}: cannot be made ({error.strerror}). Name another folder."
            ) from None
        write_experiment(root, plan.model_dump(mode="json", exclude_none=True))
        for cell in run.cells:
            cell.write()
        return run

    @classmethod
    def plan_at(cls, plan: Plan, root: Path) -> Run:
        """The run that ``create`` would make, checked; nothing is written."""
        check_path(root)
        if root.exists() and not root.is_dir():
            raise ConfigError(f"--out {root}: this is a file. Name a folder.")
        if os.path.lexists(root / "experiment.toml"):
            if (name := check_version(root).get("name")) != plan.name:
                raise ConfigError(
                    f"--out {root}: the folder holds the run of {name!r}, and this experiment is "
                    f"{plan.name!r}. Name another folder."
                )
        elif root.exists() and any(root.iterdir()):
            raise ConfigError(
                f"--out {root}: the folder holds something that is no run. Name another one."
            )
        return cls(root, plan, tuple(make_cells(plan, root)))

    @classmethod
    def open(cls, root: Path, overrides: Sequence[str] = ()) -> Run:
        """Read the plan back from the folder; ``overrides`` apply to each of its experiments.

        A Ray cluster of the folder is not joined, since whoever made it chose its address.

        Raises:
            ConfigError: as ``check_version``, or the experiment is not valid.
            StoreError: a file was altered.
        """
        table = check_version(root)
        listed = table.get("experiments")
        for experiment in listed if isinstance(listed, list) else ():
            if isinstance(experiment, dict):
                _forget_address(root, experiment.get("attack_stage"))
                override(experiment, overrides)
        try:
            plan = Plan.model_validate_json(json.dumps(table))
        except ValidationError as error:
            raise ConfigError(f"{root / 'experiment.toml'}: {explain(error, '')}") from None
        check_whole(root / "experiment.toml")
        run = cls(root, plan, tuple(make_cells(plan, root)))
        for cell in run.cells:
            _check_cell(cell)
        return run


def write_experiment(root: Path, table: Mapping[str, Any]) -> None:
    """Write ``experiment.toml`` with the number of its schema and its hash."""
    body = tomli_w.dumps(table).encode()
    header = f'schema = {SCHEMA}\nsha256 = "{digest(body)}"\n'
    write_bytes(root / "experiment.toml", header.encode(), body)


def _forget_address(root: Path, stage: object) -> None:
    if isinstance(stage, dict) and (address := stage.pop("address", "")):
        say(
            f"fedsim: {root} names the Ray cluster {address!r}, which is not joined: "
            "a run folder may be anybody's. Pass --address to join one.",
            error=True,
        )


def _check_cell(cell: Cell) -> None:
    """Compare ``cell.json`` with the experiment, and ``simulation.json`` with its seal."""
    path = cell.folder / "cell.json"
    if path.exists() and fingerprint(read_record(path, CellConfig)) != fingerprint(cell.config):
        raise StoreError(
            f"{path}: cut or altered: not the cell that experiment.toml and its name describe. "
            "Restore it."
        )
    if cell.simulated:
        from fedsim.records import SimulationRecord  # here, as it imports torch

        read_record(cell.folder / "simulation.json", SimulationRecord)


def read_rules(root: Path) -> dict[str, VerdictRule]:
    """The rule of the verdicts of each experiment of a run, by its name."""
    return {
        table["name"]: VerdictRule.model_validate(table.get("verdict", {}))
        for table in check_version(root).get("experiments", [])
    }


def note_provenance(
    run: Run,
    stage: str,
    seconds: float,
    devices: Collection[str] = ("cpu",),
    jobs: Mapping[str, int] | None = None,
    *,
    worked: bool = True,
) -> None:
    """Record what ran, from which commit, on what, and how long; each stage keeps its own.

    Training and attacks go on where they stood, so that their times add up and each commit that
    took part is listed; nothing is noted of a command that found all done (``worked`` is False).
    ``devices`` says what computed; sums differ between a GPU and the CPU. ``jobs`` says how many
    jobs were settled and planned when the run was scored.
    """
    path = run.root / "provenance.json"
    known = read_provenance(run.root) if path.exists() else {}
    if not worked and stage in known.get("commits", {}):
        return

    def noted(key: str, value: object) -> dict[str, object]:
        return {**known.get(key, {}), stage: value}

    goes_on = stage in ("simulate", "attack")
    before = known.get("seconds", {}).get(stage, 0.0) if goes_on else 0.0
    commits = [*(_commits(known, stage) if goes_on else ()), _commit()]
    table = {
        "fedsim": __version__,
        "schema": SCHEMA,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "flwr", "ray", "transformers")},
        "machine": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "seeds": sorted({seed for e in run.plan.experiments for seed in e.seeds}),
        "started": known.get("started", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())),
        "commands": noted("commands", redacted(shlex.join(["fedsim", *sys.argv[1:]]))),
        "commits": noted("commits", _THEN.join(dict.fromkeys(commits))),
        "devices": noted("devices", sorted(devices)),
        "seconds": noted("seconds", round(before + seconds, 3)),
        "jobs": known.get("jobs", {}) if jobs is None else jobs,
    }
    write_json(path, {**table, "seal": seal_of(table)})


def earlier_commits(root: Path, stage: RunStage) -> list[str]:
    """The commits other than today's by which a stage of a run was done so far."""
    known = read_provenance(root) if (root / "provenance.json").exists() else {}
    return [commit for commit in _commits(known, stage) if commit != _commit()]


def _commits(known: Mapping[str, Any], stage: str) -> list[str]:
    return [name for name in str(known.get("commits", {}).get(stage, "")).split(_THEN) if name]


def _commit() -> str:
    """Today's, or the version where fedsim is installed without a checkout."""
    changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{_git('rev-parse', 'HEAD') or f'fedsim {__version__}'}{changed}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # captures can be attacked without Flower and Ray
        return None


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None  # installed, perhaps inside the checkout of another project
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
