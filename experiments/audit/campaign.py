"""Attacks on all captures of another application, with their guesses on disk, and their scores."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks import attack_classes
from experiments.audit.attacking import attack
from experiments.audit.captured import Captured
from experiments.audit.guess import NO_SCORE, Guess
from experiments.audit.scoring import scores_of
from fedsim.build import suggest
from fedsim.capture import CaptureKey, CaptureStore, batch_from, batch_tensors
from fedsim.errors import CannotAttack, ConfigError, StoreError
from fedsim.files import load_tensors, read_record, save_tensors, write_bytes, write_json
from fedsim.records import MAIN, JobRecord, Status
from fedsim.tasks import load_task, save_task
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.images import ImageClassification
from fedsim.truth import TruthStore

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS = {"text": ("span", "embedding_rows"), "image": ("closed_form", "inverting")}
"""The attacks that are run where none is named."""
_GUESSES = "guesses"


@dataclass
class Campaign:
    """What attacks made of a folder of captures.

    Attributes:
        folder: where the guesses lie, ``<attack>/<capture>.safetensors`` and ``.json``.
        guesses: by capture and attack.
        refusals: why there is no guess, by capture and attack.
    """

    folder: Path
    guesses: dict[tuple[str, str], Guess] = field(default_factory=dict)
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)

    def said(self, key: str, name: str) -> str:
        """What became of one attack on one capture."""
        refusal = self.refusals.get((key, name))
        return f"{name}: {refusal}" if refusal else str(self.guesses[key, name])

    def line(self) -> str:
        """The answer in one line."""
        sure = Counter({name: 0 for _, name in (*self.guesses, *self.refusals)})
        for (_, name), guess in self.guesses.items():
            sure[name] += sum(guess.certified)
        total = len({key for key, _ in (*self.guesses, *self.refusals)})
        said = ", ".join(f"{name} {count}" for name, count in sure.most_common())
        page = self.folder / "index.html"
        return f"certified examples in {total} captures: {said}; guesses: {page}. {NO_SCORE}"

    def json(self) -> str:
        """As JSON data."""
        rows = [
            {
                "capture": key,
                "attack": name,
                "texts": guess.texts,
                "confidence": guess.confidence,
                "objective": guess.objective,
                "note": guess.note,
            }
            for (key, name), guess in self.guesses.items()
        ]
        refused = [{"capture": k, "attack": a, "refused": r} for (k, a), r in self.refusals.items()]
        return json.dumps({"guesses": str(self.folder), "rows": [*rows, *refused]})

    def page(self) -> str:
        """The guesses as HTML."""
        parts = [
            f"<h2>{html.escape(key)}</h2>{guess._repr_html_()}"
            for (key, _), guess in self.guesses.items()
        ]
        parts += [
            f"<p>{html.escape(f'{key}: {name}: {reason}')}</p>"
            for (key, name), reason in self.refusals.items()
        ]
        return f"<!doctype html><meta charset=utf-8><title>guesses</title><p>{NO_SCORE}</p>" + (
            "".join(parts)
        )


def attack_captures(found: Captured, names: Sequence[str], budget: float, quiet: bool) -> Campaign:
    """Run attacks on every capture, print each guess, and keep them beside the captures.

    Args:
        found: the captures.
        names: attacks; those of ``DEFAULTS`` if empty.
        budget: seconds for each attack on each capture.
        quiet: print nothing.

    Raises:
        ConfigError: an attack does not exist.
    """
    root = found.store.root
    chosen = names or DEFAULTS[found.task.modality]
    for name in chosen:
        if name not in attack_classes():
            raise ConfigError(f"--attacks {name!r}: not known. {suggest(name, attack_classes())}")
    save_task(found.task, root)
    done = Campaign(root / _GUESSES)
    for number, victim in enumerate(found):
        key = victim.observation.key
        if not quiet and not number:
            print(victim)
        for name in chosen:
            try:
                guess = attack(victim, name, budget=budget, quiet=quiet)
            except Exception as error:  # a fault of one attack leaves the others their turn
                refused = isinstance(error, CannotAttack)
                said = f"refuses: {error}" if refused else f"{type(error).__name__}: {error}"
                done.refusals[str(key), name] = said
                status: Status = "skipped" if refused else "failed"
                record = JobRecord(attack=name, key=key, status=status, reason=said)
                _keep(done.folder, name, record, None)
            else:
                done.guesses[str(key), name] = guess
                _keep(done.folder, name, _record(key, guess), guess)
            if not quiet:
                print(f"{key}: {done.said(str(key), name)}", flush=True)
    write_bytes(done.folder / "index.html", done.page().encode())
    return done


def _record(key: CaptureKey, guess: Guess) -> JobRecord:
    return JobRecord(
        attack=guess.attack,
        key=key,
        status="done",
        reason=guess.note,
        seconds=guess.seconds,
        objective=guess.objective,
        confidence=guess.confidence or None,
    )


def _keep(folder: Path, name: str, record: JobRecord, guess: Guess | None) -> None:
    path = folder / name / f"{record.key}.safetensors"
    if guess is not None:
        sha256 = save_tensors(path, batch_tensors(guess.examples.batch))
        record = record.model_copy(update={"sha256": sha256})
    write_json(path.with_suffix(".json"), record)


def score_captures(folder: Path, truth: Path) -> pd.DataFrame:
    """Mean scores of each attack over all examples whose truth is known.

    They are also kept in ``guesses/scores.csv``, one row for each example and metric.

    Raises:
        StoreError: nothing was attacked, or the truth is missing.
    """
    import pandas as pd

    task = _task(folder)
    private = TruthStore(truth)
    known = private.by_capture() if truth.is_dir() else {}
    keys = [key for key in CaptureStore(folder).keys() if key in known]
    if not keys:
        raise StoreError(
            f"{truth}: holds no examples of these captures. Pass the folder that truth_mod wrote "
            "in the same run."
        )
    rows = [row for key in keys for row in _scored(folder, task, private, key)]
    if not rows:
        raise StoreError(f"{folder}: not attacked. Run fedsim attack {folder} first.")
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / _GUESSES / "scores.csv", index=False)
    shown = frame[frame.metric.isin(["exact_match", "rouge1", MAIN[task.modality], "mse"])]
    means = shown.pivot_table(index="attack", columns="metric", values="value").reset_index()
    return means.assign(examples=len(frame.drop_duplicates(["capture", "example"])))


def _scored(
    folder: Path, task: Task, private: TruthStore, key: CaptureKey
) -> Iterator[dict[str, Any]]:
    truth = task.examples(private.load(key))
    for path in sorted((folder / _GUESSES).glob(f"*/{key}.json")):
        record = read_record(path, JobRecord)
        if record.sha256 is None:
            continue
        tensors = load_tensors(path.with_suffix(".safetensors"), record.sha256)
        guessed = task.examples(batch_from(tensors))
        scores = scores_of(record.attack, guessed, record.confidence or (), truth, task)
        for metric, values in scores.values.items():
            for example, value in enumerate(values):
                yield {
                    "capture": str(key),
                    "attack": record.attack,
                    "example": example,
                    "metric": metric,
                    "value": value,
                    "certified": scores.certified[example],
                }


def _task(folder: Path) -> Task:
    path = folder / "task.json"
    if path.exists() and (spec := read_record(path, TaskSpec)).factory:
        return ImageClassification(spec)  # pictures are compared without their model
    return load_task(folder)
