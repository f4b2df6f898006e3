"""The run folder of attacks on another application's captures, ``run/`` beside the tensors.

The captures enter it under the names of the model, as the one cell of a run that is simulated: the
stages take it as any other.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from attacks.scheduling.readings import MIRRORED
from experiments.captures.captured import Captured
from experiments.captures.disclosures import Disclosure, disclosed
from experiments.captures.evidence import Fit
from experiments.captures.findings import Findings, WordFit
from experiments.captures.guess import Guess, caveats
from experiments.captures.saving import save_capture
from experiments.plan.cells import Cell
from experiments.plan.config import AttackStage, ExperimentConfig, Plan
from experiments.plan.folder import Run
from experiments.wording.catalogue import sentence
from experiments.wording.prose import capital
from fedsim.capture import CaptureKey, CaptureStore, batch_from, client_of
from fedsim.cell import TaskConfig
from fedsim.errors import ConfigError, StoreError
from fedsim.federation import FederationConfig
from fedsim.files import Sealed, digest, load_tensors, read_record, write_json
from fedsim.knowledge import FACTS, Knowledge
from fedsim.manifest import hashes
from fedsim.metrics import METRICS
from fedsim.plain_files import make_private
from fedsim.records import UNFINISHED, JobRecord, SimulationRecord
from fedsim.server_knows import ServerKnows
from fedsim.tasks import save_task
from fedsim.tasks.base import Task

_INTAKE, _FITS = "intake.json", "cosines.json"


class Intake(Sealed):
    """What was taken into the run.

    Attributes:
        given: what each update gives away by itself.
        unfit: capture -> why its tensors do not fit the model.
    """

    given: tuple[Disclosure, ...]
    unfit: dict[str, str]


class Fits(Sealed):
    """The cosines of the guesses, by ``fit_name``; None for a guess that has none."""

    cosines: dict[str, Fit | None]


@dataclass(frozen=True)
class Outcome:
    """One attack on one capture; ``guess`` is None where there is none.

    Attributes:
        words: how the words of a guessed text lie in the updates; None where none can be read.
    """

    record: JobRecord
    guess: Guess | None
    fit: Fit | None
    words: WordFit | None = None

    @property
    def borne_out(self) -> bool:
        """Whether the update speaks for the guess, or at least for its words."""
        by_words = self.words is not None and self.words.borne_out
        return by_words or (self.fit is not None and self.fit.own > (self.fit.other or 0.0))

    @property
    def evidence(self) -> str:
        """What the update says of the guess, in sentences; empty if nothing."""
        parts = [capital(str(part)) + "." for part in (self.words, self.fit) if part is not None]
        if self.guess is None or all(self.guess.certified) or not parts:
            return " ".join(parts)
        if self.words is not None and self.words.borne_out:
            return " ".join([*parts, sentence("guess.words_borne_out")])
        return " ".join([*parts, *([] if self.borne_out else [sentence("guess.not_borne_out")])])

    @property
    def certified(self) -> int:
        """Number of examples that the update proves."""
        return sum(level == "certified" for level in self.record.confidence or ())

    @property
    def refusal(self) -> str:
        """Why there is no guess; empty if there is one."""
        if self.guess is not None:
            return ""
        record = self.record
        if not record.cause:
            return record.reason
        late = f"{UNFINISHED}; " if record.status == "timeout" else ""
        return f"{late}{record.cause}. {record.advice}"

    def __str__(self) -> str:
        if self.guess is None:
            refuses = "refuses: " if self.record.status == "skipped" else ""
            return f"{self.record.attack}: {refuses}{self.refusal}"
        return f"{self.guess}\n  {self.evidence}".rstrip()


@dataclass(frozen=True)
class Effort:
    """What one attack makes of all captures; a mean is None where no guess has its number.

    Attributes:
        attack: its name.
        captures: on which it was run.
        guesses: of these, those from which it guessed.
        certified: examples that an update proves.
        objective: mean of the attack's own.
        cosine: mean of a guess's gradient with its update, see ``evidence.Fit``.
        null: mean of the same gradients with another client's update.
    """

    attack: str
    captures: int
    guesses: int
    certified: int
    objective: float | None
    cosine: float | None
    null: float | None


def efforts(results: Sequence[Outcome]) -> Iterator[Effort]:
    """One for each attack, in the order in which they were run."""
    for name in dict.fromkeys(outcome.record.attack for outcome in results):
        mine = [outcome for outcome in results if outcome.record.attack == name]
        fits = [outcome.fit for outcome in mine if outcome.fit]
        yield Effort(
            attack=name,
            captures=len(mine),
            guesses=sum(outcome.guess is not None for outcome in mine),
            certified=sum(outcome.certified for outcome in mine),
            objective=_mean(outcome.record.objective for outcome in mine),
            cosine=_mean(fit.own for fit in fits),
            null=_mean(fit.other for fit in fits),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


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
        mirrored = None if victim.difference is None else victim.difference.observation
        settled = {"sign_open": mirrored is not None, "doubt": victim.doubt}
        record = record.model_copy(update=settled)
        save_capture(store, victim.observation, record, broadcasts)
        if mirrored is not None:
            save_capture(CaptureStore(store.root / MIRRORED), mirrored, record, {})
        given.append(disclosed(victim, record.metrics))
    if error is not None and not given:
        raise error
    save_task(captures.task, store.root)
    write_json(store.root / "run.json", {"captures": str(captures.store.root)})
    write_json(cell.folder / _INTAKE, Intake(given=tuple(given), unfit=unfit))
    seal = hashes(store.root)
    done = SimulationRecord(seconds=0, utility=(), bytes_up={}, incidents=(), captures=seal)
    write_json(cell.folder / "simulation.json", done)


def outcomes(run: Run, task: Task) -> Iterator[Outcome]:
    """What attacks left, by attack and capture."""
    (cell,) = run.cells
    intake, fits = read_intake(run), read_fits(run)
    findings = Findings(intake.given)
    for name in [table["name"] for table in cell.experiment.attacks]:
        for text, reason in intake.unfit.items():
            key = CaptureKey.parse(text)
            yield Outcome(
                JobRecord(key=key, attack=name, status="skipped", reason=reason), None, None
            )
        for key in cell.captures.keys():
            path = cell.guess_folder(name) / f"{key}.json"
            if path.exists():
                yield _outcome(path, task, fits, findings)


def _outcome(path: Path, task: Task, fits: Mapping[str, Fit | None], findings: Findings) -> Outcome:
    record = read_record(path, JobRecord)
    if record.sha256 is None:
        return Outcome(record, None, None)
    batch = batch_from(load_tensors(path.with_suffix(".safetensors"), record.sha256))
    confidence = record.confidence or ()
    guess = Guess(
        attack=record.attack,
        options={},
        examples=task.examples(batch),
        confidence=confidence,
        objective=record.objective,
        seconds=record.seconds,
        note=caveats(task, record.reason, confidence),
        task=task,
        classes_read=findings.classes_read(record.key),
    )
    tokens = {token for line in guess.examples.tokens for token in line}
    words = findings.fit(record.key, tokens)
    return Outcome(record, guess, fits.get(fit_name(record)), words)


def fit_name(record: JobRecord) -> str:
    """Under which the cosines of a guess are kept."""
    return f"{record.attack}/{record.key}/{record.sha256}"


def read_intake(run: Run) -> Intake:
    """What was taken into the run.

    Raises:
        StoreError: the file is missing, cut or altered, or the run is of an earlier version.
    """
    return read_record(run.cells[0].folder / _INTAKE, Intake)


def read_fits(run: Run) -> dict[str, Fit | None]:
    """The cosines of the guesses, see ``Fits``; empty before the first."""
    path = run.cells[0].folder / _FITS
    return read_record(path, Fits).cosines if path.exists() else {}


def write_fits(run: Run, fits: Mapping[str, Fit | None]) -> None:
    """Keep the cosines of the guesses."""
    write_json(run.cells[0].folder / _FITS, Fits(cosines=dict(fits)))


def is_scored(run: Run) -> bool:
    """Whether the latest attacks are scored."""
    rows = run.scores if (run.root / "scores.parquet").exists() else []
    return any(row.cell == run.cells[0].name for row in rows)


def _plain(value: object) -> object:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value  # type: ignore[call-overload]
