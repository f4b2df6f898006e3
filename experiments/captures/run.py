"""The run folder of attacks on another application's captures, ``run/`` beside the tensors.

The captures enter it under the names of the model, as the one cell of a run that is simulated: the
stages take it as any other.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from attacks.foreign.readings import MIRRORED
from experiments.captures.captured import Captured
from experiments.captures.disclosures import Disclosure, disclosed
from experiments.captures.saving import save_capture
from experiments.plan.cells import Cell
from experiments.plan.config import AttackStage, ExperimentConfig, Plan
from experiments.plan.folder import Run
from fedsim.config.cell import ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.errors import ConfigError, StoreError
from fedsim.knowledge import FACTS, Knowledge
from fedsim.metrics import METRICS
from fedsim.records import SimulationRecord
from fedsim.store.capture import CaptureStore, client_of
from fedsim.store.files import Sealed, digest, hashes, read_record, write_json
from fedsim.store.plain_files import make_private
from fedsim.tasks import save_task

_INTAKE = "intake.json"


class Intake(Sealed):
    """What was taken into the run.

    Attributes:
        given: what each update gives away by itself.
        unfit: capture -> why its tensors do not fit the model.
    """

    given: tuple[Disclosure, ...]
    unfit: dict[str, str]


def make_run(captures: Captured, names: Sequence[str], budget: float) -> Run:
    """Make the run folder, or go on in it; what was finished with the same facts is kept.

    Raises:
        ConfigError: no capture fits the model.
    """
    root = captures.store.root / "run"
    experiment = _experiment(captures, budget)
    if (root / "experiment.toml").exists():
        (before,) = Run.open(root).plan.experiments
        same = before.model_copy(update={"attacks": ()}) == experiment
        earlier = [table["name"] for table in before.attacks] if same else []
        names = list(dict.fromkeys([*earlier, *names]))
    tables = tuple({"name": name} for name in names)
    experiment = experiment.model_copy(update={"attacks": tables})
    plan = Plan(name="captures", experiments=(experiment,))
    fresh = not root.exists()
    make_private(root)
    run = Run.create(plan, root)
    (cell,) = run.cells
    if not (cell.simulated and (cell.folder / _INTAKE).exists()):
        try:
            _take_in(captures, cell)
        except ConfigError:
            if fresh:
                shutil.rmtree(root)
            raise
    return run


def open_run(folder: Path) -> Run:
    """The run of the latest attacks on a folder of captures.

    Raises:
        StoreError: nothing was attacked.
    """
    root = folder.resolve() / "run"
    if not (root / "experiment.toml").exists():
        raise StoreError(f"{folder}: not attacked. Run fedsim attack {folder} first.")
    run = Run.open(root)
    if not (run.cells[0].folder / _INTAKE).exists():
        raise StoreError(
            f"{folder}: attacked by an earlier version. Run fedsim attack {folder} again, which "
            "keeps its guesses."
        )
    return run


def _experiment(captures: Captured, budget: float) -> ExperimentConfig:
    """The captures as an experiment, whose name changes with them and with the granted facts."""
    store, spec = captures.store, captures.task.spec
    records = [store.record(key) for key in captures.keys]
    known = {
        "task": spec.model_dump(mode="json", exclude={"seal"}),
        "knows": {k: _plain(v) for k, v in captures.knows.items()},
        "kind": captures.kind,
        "base": captures.base is not None,
        "budget": budget,
        "seen": [(str(record.key), record.sha256, record.sent_sha256) for record in records],
    }
    text = json.dumps(known, sort_keys=True, default=str)
    facts = _known(captures)
    kinds = {captures.kind or record.kind for record in records}
    replies = Counter(record.key.round for record in records)
    federation = FederationConfig(
        engine="in-process",
        protocol="fedsgd" if kinds == {"gradient"} else "fedavg",
        clients=max(replies.values()) * facts.cohort,
        rounds=max(replies),
        batch_size=facts.batch_size or 1,
        local_steps=0 if kinds == {"gradient"} else facts.local_steps or 0,
        secure_aggregation=facts.cohort if facts.cohort > 1 else 0,
    )
    granted = {fact: getattr(facts, fact) not in (None, False) for fact in FACTS}
    others = tuple(name for name in METRICS if name != "label_accuracy")
    return ExperimentConfig(
        name=f"captures-{digest(text.encode())[:8]}",
        task=TaskConfig(model=spec.factory or spec.model, dataset="captures"),
        federation=federation,
        server_knows=ServerKnows(**granted),
        attack_stage=AttackStage(time_budget=budget, group_size=1, control_jobs=0),
        metrics=() if spec.target == "class" else others,
    )


def _known(captures: Captured) -> Knowledge:
    """The facts behind the first capture that fits: told, or read off the reply itself."""
    keys = captures.keys
    for key in keys:
        with suppress(ConfigError):  # said where captures are taken in
            return captures.update(key).observation.knowledge
    return captures.store.record(keys[0]).knowledge.model_copy(update=captures.knows)


def _take_in(captures: Captured, cell: Cell) -> None:
    """Write the captures under the names of the model, and what they give away by themselves."""
    store, given, unfit = cell.captures, [], dict[str, str]()
    shutil.rmtree(store.root, ignore_errors=True)
    broadcasts: dict[str, str] = {}
    error: ConfigError | None = None
    for key in captures.keys:
        if key.client != client_of(key.client):
            raise ConfigError(
                f"{key}: an earlier version captured it, and no table holds so great a node id. "
                "Capture again."
            )
        try:
            victim = captures.update(key)
        except ConfigError as fault:  # of this client's tensors; the others' may fit
            unfit[str(key)] = str(fault)
            error = error or fault
            continue
        record = captures.store.record(key)
        settled = {"sign_open": victim.difference is not None, "doubt": victim.doubt}
        record = record.model_copy(update=settled)
        save_capture(store, victim.observation, record, broadcasts)
        if victim.difference is not None:
            save_capture(CaptureStore(store.root / MIRRORED), victim.difference, record, {})
        given.append(disclosed(victim, record.metrics))
    if error is not None and not given:
        raise error
    save_task(captures.task, store.root)
    write_json(store.root / "run.json", {"captures": str(captures.store.root)})
    write_json(cell.folder / _INTAKE, Intake(given=tuple(given), unfit=unfit))
    seal = hashes(store.root)
    done = SimulationRecord(seconds=0, utility=(), bytes_up={}, incidents=(), captures=seal)
    write_json(cell.folder / "simulation.json", done)


def read_intake(run: Run) -> Intake:
    """What was taken into the run.

    Raises:
        StoreError: the file is missing, cut or altered, or the run is of an earlier version.
    """
    return read_record(run.cells[0].folder / _INTAKE, Intake)


def is_scored(run: Run) -> bool:
    """Whether the latest attacks are scored."""
    rows = run.scores if (run.root / "scores.parquet").exists() else []
    return any(row.cell == run.cells[0].name for row in rows)


def _plain(value: object) -> object:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value  # type: ignore[call-overload]
