"""The command-line options that all stages share, turned into a plan or a run."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.plan.config import ExperimentConfig, Plan, load_plan
from experiments.plan.folder import Run, RunStage
from experiments.preview.manuals import unknown_names
from fedsim.config.named_code import check_allowed, is_named
from fedsim.errors import ConfigError
from fedsim.visible import say


def folder_of(path: str) -> Path:
    """A path of this machine, where runs lie.

    Raises:
        ConfigError: it is a URL.
    """
    if "://" in path:
        raise ConfigError(
            f"{path.partition('?')[0]}: a run is a folder of this machine. Copy it from and to "
            "the store with rclone or your store's own command, and name the folder."
        )
    return Path(path)


@dataclass(frozen=True)
class Invocation:
    """Values of the options that all stages share; None where an option was not given."""

    target: str
    sets: list[str] = field(default_factory=list)
    out: Path | None = None
    seed: int | None = None
    workers: int | None = None
    engine: str | None = None
    gpus: float | None = None
    address: str | None = None

    def plan(self) -> Plan:
        """The experiment with the overrides applied."""
        overrides = list(self.sets)
        if self.seed is not None:
            overrides.append(f"seeds=[{self.seed}]")
        return load_plan(
            self.target, [*overrides, *self._machine(), *self._clients()], unknown_names
        )

    def _machine(self) -> list[str]:
        """Overrides that change results by rounding at most; finished runs accept them too."""
        overrides = [] if self.engine is None else [f"federation.engine={self.engine}"]
        if self.workers is not None:
            overrides.append(f"federation.client_workers={self.workers}")
            overrides.append(f"attack_stage.workers={self.workers}")
        if self.gpus is not None:
            overrides.append(f"attack_stage.gpus={self.gpus}")
        if self.address is not None:
            overrides.append(f"attack_stage.address={json.dumps(self.address)}")
        return overrides

    def _warn(self, plan: Plan) -> None:
        """Say so where more workers are asked for than there are cores, which is slower."""
        cores = os.cpu_count() or 1
        local = [e for e in plan.experiments if e.federation.engine == "ray"]
        stages = [e.attack_stage for e in local if not e.attack_stage.address]
        most = max((stage.workers * stage.threads for stage in stages), default=0)
        if self.workers is not None and most > cores:
            say(
                f"fedsim: {most} workers share {cores} cores, which is slower than {cores}.",
                error=True,
            )

    def _clients(self) -> list[str]:
        """Overrides that make other cells, so that a run that has begun takes none of them."""
        return [] if self.gpus is None else [f"federation.client_gpus={self.gpus}"]

    def opened(self) -> Run | None:
        """The run that the target names if it is a folder, with the experiment stored there."""
        folder_of(self.target)
        if not Path(self.target).is_dir():
            return None
        if self.sets or self.out or self.seed is not None:
            raise ConfigError(
                f"{self.target}: a run folder has a fixed experiment, so --set, --out and "
                "--seed do not apply. Name the experiment instead."
            )
        run = Run.open(Path(self.target), self._machine())
        if self.gpus is None or any(cell.simulated for cell in run.cells):
            return run
        return Run.open(Path(self.target), [*self._machine(), *self._clients()])

    def resolved(self) -> Plan:
        """The plan of the run, if the target is a folder, else of the experiment."""
        opened = self.opened()
        return self.plan() if opened is None else opened.plan

    def run(self, stages: Sequence[RunStage]) -> Run:
        """The run to work on. Nothing is written unless the stages can start."""
        if (opened := self.opened()) is not None:
            run = opened
        else:
            plan = self.plan()
            run = Run.plan_at(plan, self.out or Path("runs") / plan.name)
        self._warn(run.plan)
        pending = [cell for cell in run.cells if not cell.simulated]
        if tuple(stages) == ("report",):  # of the tables alone; captures may have been removed
            pending = []
        if pending and "simulate" not in stages:
            stage = "run" if "score" in stages else "simulate"  # scores need attacks as well
            raise ConfigError(
                f"{pending[0].folder}: not simulated yet. Run fedsim {stage} {self.target} first."
            )
        if opened is not None and {"simulate", "attack"} & {*stages}:
            for name in {cell.config.task.model for cell in run.cells}:
                if is_named(name):
                    check_allowed(name, str(run.root / "experiment.toml"))
        training = {cell.experiment.name for cell in pending}
        for experiment in run.plan.experiments:
            check_gpus(
                experiment, training=experiment.name in training, attacking="attack" in stages
            )
        if pending:
            from experiments.plan.rehearsal import rehearse

            rehearse(pending)
        begun = any(cell.simulated for cell in run.cells)
        if opened is None or (self.gpus is not None and not begun):
            return Run.create(run.plan, run.root)
        for cell in pending:
            cell.write()
        return run


def check_gpus(experiment: ExperimentConfig, *, training: bool, attacking: bool) -> None:
    """Raise ``ConfigError`` if the workers of a stage ask for more GPUs than there are.

    Otherwise they would run on the CPU or wait for each other forever. A Ray cluster joined by its
    address has its own GPUs and is not checked.
    """
    federation, stage = experiment.federation, experiment.attack_stage
    on_ray = federation.engine == "ray"
    if on_ray and stage.address:
        return
    if training:
        # Client workers hold their GPUs until the training ends; attack jobs take turns.
        workers = federation.client_workers if on_ray else 1
        _check("federation.client_gpus", federation.client_gpus, workers)
    if attacking:
        _check("attack_stage.gpus", stage.gpus, 1)


def _check(option: str, share: float, workers: int) -> None:
    if not share:
        return
    if share > 1 and share % 1:
        raise ConfigError(
            f"{option}: {share:g} is neither a fraction of one GPU nor a whole number. "
            "Write at most 1, or a whole number."
        )
    import torch

    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if workers > (have // int(share) if share >= 1 else have * int(1 / share)):
        raise ConfigError(
            f"{option}: {workers} x {share:g} GPUs are needed at the same time, but torch finds "
            f"{have}. Lower --gpus or --workers; --gpus 0 runs on the CPU."
        )
