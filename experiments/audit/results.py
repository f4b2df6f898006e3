"""What attacks made of another application's captures, on disk beside them, with its scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.audit.evidence import Fit
from experiments.audit.guess import NO_SCORE, Guess
from experiments.audit.rich import grid, table
from experiments.audit.scoring import scores_of
from fedsim.capture import CaptureKey, CaptureStore, batch_from, batch_tensors
from fedsim.errors import StoreError
from fedsim.files import (
    load_tensors,
    read_json,
    read_record,
    save_tensors,
    write_bytes,
    write_json,
)
from fedsim.metrics.base import Examples
from fedsim.plain_files import check_folder, make_private
from fedsim.records import MAIN, JobRecord
from fedsim.tasks import load_task
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.images import ImageClassification
from fedsim.truth import TruthStore
from fedsim.types import Batch
from fedsim.visible import escaped, inert

if TYPE_CHECKING:
    import pandas as pd

GUESSES = "guesses"
_SCORES = "scores.csv"
_SHOWN = ("exact_match", "rouge1", "rougeL", "psnr", "mse")


@dataclass(frozen=True)
class Kept:
    """One attack on one capture, as ``keep`` wrote it; ``examples`` is None without a guess."""

    record: JobRecord
    examples: Examples | None
    fit: Fit | None

    @property
    def certified(self) -> int:
        """Number of examples that the update proves."""
        return sum(level == "certified" for level in self.record.confidence or ())


def keep(folder: Path, record: JobRecord, guess: Guess | None, fit: Fit | None) -> None:
    """Write what became of one attack on one capture below ``folder``."""
    path = folder / record.attack / f"{record.key}.safetensors"
    if guess is not None:
        batch = guess.examples.batch
        inputs = batch.inputs if guess.images is None else guess.images
        sha256 = save_tensors(path, batch_tensors(replace(batch, inputs=inputs)))
        record = record.model_copy(update={"sha256": sha256})
    write_json(path.with_suffix(".fit.json"), {"cosines": fit})
    write_json(path.with_suffix(".json"), record)


def results(folder: Path, task: Task) -> Iterator[Kept]:
    """All that attacks left beside the captures in ``folder``, by attack and capture."""
    for key in CaptureStore(folder).keys():
        for path in sorted((folder / GUESSES).glob(f"*/{key}.json")):
            record = read_record(path, JobRecord)
            cosines = read_json(path.with_suffix(".fit.json"))["cosines"]
            examples = None
            if record.sha256 is not None:
                tensors = load_tensors(path.with_suffix(".safetensors"), record.sha256)
                examples = task.examples(_pixels(batch_from(tensors), task))
            yield Kept(record, examples, Fit(*cosines) if cosines else None)


def _pixels(batch: Batch, task: Task) -> Batch:
    """A batch in its owner's shape and range, as attacks hold it."""
    if not isinstance(task, ImageClassification):
        return batch
    return replace(batch, inputs=task.form.read(batch.inputs))


def task_in(folder: Path) -> Task:
    """The task of captures that ``check_folder`` takes, without running code that a file names."""
    check_folder(folder)
    path = folder / "task.json"
    if path.exists() and (spec := read_record(path, TaskSpec)).factory:
        return ImageClassification(spec)  # pictures are compared without their model
    return load_task(folder)


def score_captures(folder: Path, truth: Path) -> pd.DataFrame:
    """Mean scores of each attack over all examples whose truth is known.

    They are also kept in ``guesses/scores.csv``, one row for each example and metric. The null is
    the score of the attack's guess on another client's update, or on another round's sum of a
    cohort that is alone in its round.

    Raises:
        StoreError: nothing was attacked, or the truth is missing.
    """
    import pandas as pd

    task, private = task_in(folder), TruthStore(truth)
    known = private.by_capture() if truth.is_dir() else {}
    if not any(key in known for key in CaptureStore(folder).keys()):
        raise StoreError(
            f"{truth}: holds no examples of these captures. Pass the folder that truth_mod wrote "
            "in the same run."
        )
    made = [kept for kept in results(folder, task) if kept.record.key in known]
    if not any(kept.examples for kept in made):
        lacking = "no attack left a guess. Run another one" if made else "not attacked. Run"
        raise StoreError(f"{folder}: {lacking}: fedsim attack {folder}.")
    nodes = {k.record.key: CaptureStore(folder).record(k.record.key).nodes for k in made}
    truths = {
        key: task.examples(_pixels(private.load(key, cohort), task))
        for key, cohort in nodes.items()
    }
    rows = [
        row
        for kept in made
        if kept.examples
        for row in _scored(kept, made, truths, task, bool(nodes[kept.record.key]))
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    frame.assign(attack=frame.attack.map(inert)).to_csv(folder / GUESSES / _SCORES, index=False)
    write_page(folder)
    return _means(frame, task)


_COLUMNS = ("capture", "attack", "control", "example", "metric", "value", "certified")


def _scored(
    kept: Kept, made: list[Kept], truths: dict[CaptureKey, Examples], task: Task, pooled: bool
) -> Iterator[tuple[Any, ...]]:
    key, name = kept.record.key, kept.record.attack
    alike = [k for k in made if k.record.attack == name and k is not kept]
    others = [k for k in alike if k.record.key.client != key.client]
    same_round = [k for k in others if k.record.key.round == key.round]
    others = others or (alike if pooled else [])
    for control, one in (("none", kept), ("other_client", next(iter(same_round or others), None))):
        if one is None or one.examples is None:
            continue
        sure = one.record.confidence or ()
        scores = scores_of(name, one.examples, sure, truths[key], task)
        for metric, values in scores.values.items():
            for example, value in enumerate(values):
                proven = scores.certified[example]
                yield str(key), name, control, example, metric, value, proven


def _means(frame: pd.DataFrame, task: Task) -> pd.DataFrame:
    shown = frame[frame.metric.isin([*_SHOWN, MAIN[task.modality]])]
    null = (shown.control != "none").map({True: " (null)", False: ""})
    shown = shown.assign(metric=shown.metric + null)
    means = shown.pivot_table(index="attack", columns="metric", values="value").reset_index()
    own = frame[frame.control == "none"]
    return means.assign(examples=len(own.drop_duplicates(["capture", "example"])))


def report_captures(folder: Path) -> pd.DataFrame:
    """One row for each attack, and the page with every guess written anew.

    Columns: how many captures it was run on, guesses, examples that an update proves, mean
    objective, mean cosines of ``evidence.Fit`` with their null, and the scores if there are any.

    Raises:
        StoreError: nothing was attacked.
    """
    import pandas as pd

    task = task_in(folder)
    made = list(results(folder, task))
    if not made:
        raise StoreError(f"{folder}: not attacked. Run fedsim attack {folder} first.")
    rows = []
    for name in dict.fromkeys(kept.record.attack for kept in made):
        mine = [kept for kept in made if kept.record.attack == name]
        fits = [kept.fit for kept in mine if kept.fit is not None]
        rows.append(
            {
                "attack": name,
                "captures": len(mine),
                "guesses": sum(kept.examples is not None for kept in mine),
                "certified": sum(kept.certified for kept in mine),
                "objective": _mean([kept.record.objective for kept in mine]),
                "cosine": _mean([fit.own for fit in fits]),
                "cosine (null)": _mean([fit.other for fit in fits]),
            }
        )
    frame, scored = pd.DataFrame(rows), folder / GUESSES / _SCORES
    if scored.exists():
        frame = frame.merge(_means(pd.read_csv(scored), task), on="attack", how="left")
    write_page(folder)
    return frame


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def write_page(folder: Path) -> None:
    """Write ``guesses/index.html``: every guess with how sure it is, and every refusal."""
    make_private(folder / GUESSES)
    parts = ["<!doctype html><meta charset=utf-8><title>guesses</title>"]
    scored = folder / GUESSES / _SCORES
    parts.append("" if scored.exists() else f"<p>{NO_SCORE}</p>")
    for kept in results(folder, task_in(folder)):
        record, found = kept.record, kept.examples
        goal = "" if record.objective is None else f", objective {record.objective:.3g}"
        fit = "" if kept.fit is None else f", {kept.fit}"
        head = f"{record.key}: {record.attack}: {record.status}{goal}{fit}. {record.reason}"
        parts.append(f"<p>{escaped(head)}</p>")
        if found is not None and not found.words:
            parts.append(grid(found.batch.inputs, record.confidence or ()))
        elif found is not None:
            levels = record.confidence or ("guess",) * len(found.words)
            pairs = zip(levels, map(escaped, found.words), strict=True)
            parts.append(table(list(pairs)))
    write_bytes(folder / GUESSES / "index.html", "".join(parts).encode())
