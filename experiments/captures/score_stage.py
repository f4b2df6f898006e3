"""The score and report stages on another application's captures."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from experiments.captures.evidence import Evidence
from experiments.captures.page import write_page
from experiments.captures.results import Results
from experiments.captures.run import is_scored, open_run
from experiments.pipeline import execute
from experiments.plan.cells import Cell
from experiments.plan.folder import note_provenance
from experiments.stages.coverage import EXACT_PSNR
from experiments.stages.integrity import seal_truth
from experiments.stages.membership import content
from experiments.wording.catalogue import sentence
from fedsim.errors import FedsimError, StoreError
from fedsim.records import MAIN, OTHER_CLIENT, ScoreRow
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.plain_files import check_folder
from fedsim.store.truth import TruthStore
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch
from fedsim.visible import say

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ("exact_match", "rouge1", "rougeL", "psnr", "mse")


def score_captures(folder: Path, truth: Path) -> pd.DataFrame:
    """Mean scores of each attack over all examples whose truth is known.

    The truth enters the run folder, which is then scored and reported as any other. The null is the
    score of the attack's guess on another client's update, or on another round's sum of a cohort
    that is alone in its round.

    Raises:
        StoreError: nothing was attacked, or the truth is missing.
    """
    check_folder(folder)
    task, private = load_task(folder, network=False), TruthStore(truth)
    keys = private.by_capture().keys() if truth.is_dir() else ()
    if not any(key in keys for key in CaptureStore(folder).keys()):
        raise StoreError(
            f"{truth}: holds no examples of these captures. Pass the folder that truth_mod wrote "
            "in the same run."
        )
    run = open_run(folder)
    results = Results.of(run, task)
    if not any(outcome.guess for outcome in results.outcomes if outcome.record.key in keys):
        raise StoreError(
            f"{folder}: no attack left a guess. Run another one: fedsim attack {folder}."
        )
    (cell,) = run.cells
    _copy_truth(private, cell, task)
    if unlike := _explaining_others(cell):
        say(sentence("truth.unlike", count=len(unlike), first=unlike[0]), error=True)
    execute(run, ("score", "report"), quiet=True)
    write_page(results)
    rows = run.scores
    proven = [r for r in rows if r.certified and (r.metric, r.control) == ("psnr", "none")]
    if off := sum(r.value is not None and r.value < EXACT_PSNR for r in proven):
        say(sentence("truth.changed", count=off), error=True)
    return means(rows, task)


def _copy_truth(private: TruthStore, cell: Cell, task: Task) -> None:
    """The examples of each capture as attacks hold them; equal ones have one number."""
    shutil.rmtree(cell.truth.root, ignore_errors=True)
    known, rows = private.by_capture(), dict[bytes, int]()
    for key in cell.captures.keys():
        if key not in known:
            continue
        noted = private.load(key, cell.captures.record(key).nodes)
        if (batch := _as_attacked(noted, task)) is None:
            say(sentence("truth.shape", key=key, shape=tuple(noted.inputs.shape[1:])), error=True)
            continue
        numbers = tuple(rows.setdefault(content(batch, i), len(rows)) for i in range(len(batch)))
        cell.truth.save(key, batch, numbers, (tuple(range(len(batch))),))
    if not rows:
        raise StoreError(f"{private.root}: no example has a shape that the model takes.")
    seal_truth(cell)


def _explaining_others(cell: Cell) -> list[CaptureKey]:
    """Captures whose truth explains other clients' updates as well as their own.

    An update of many steps, or of Adam, points elsewhere than the gradient at its start, so that
    the comparison decides, and not the cosine itself. Empty of a network that its owner alone can
    build.
    """
    try:
        evidence = Evidence(cell.captures, load_task(cell.captures.root))
    except FedsimError:  # its code was not named
        return []
    known = cell.truth.by_capture()
    fits = {
        key: evidence.fit(key, cell.truth.load(key)) for key in cell.captures.keys() if key in known
    }
    return [key for key, fit in fits.items() if fit is not None and fit.leads is False]


def _as_attacked(batch: Batch, task: Task) -> Batch | None:
    """A batch in its owner's shape and range, with targets as attacks hold them.

    None of what the model does not take, as of another one that the client trains as well.
    """
    if not isinstance(task, ImageClassification):
        return None if batch.inputs.is_floating_point() else batch
    if batch.inputs[0].numel() != math.prod(task.form.shape):
        return None
    return Batch(task.form.read(batch.inputs), _targets(batch.labels, task), batch.mask)


def _targets(labels: Tensor, task: Task) -> Tensor:
    """Classes ``(batch,)`` where the task has such, of numbers, one of each, or one-hot rows."""
    if task.spec.target != "class" or not labels.is_floating_point():
        return labels
    if labels.dim() == 2 and labels.shape[1] > 1:
        return labels.argmax(1)
    classes = labels.flatten().round()
    whole = bool((classes == labels.flatten()).all()) and bool((classes >= 0).all())
    return classes.long() if whole else torch.full((len(labels),), -1)


def means(rows: Sequence[ScoreRow], task: Task) -> pd.DataFrame:
    """Mean of each metric that is shown, beside its null, by attack."""
    import pandas as pd

    columns = ("attack", "round", "client", "example", "control", "metric", "value")
    table = [tuple(getattr(row, name) for name in columns) for row in rows]
    frame = pd.DataFrame(table, columns=columns)
    frame = frame[frame.control.isin(["none", OTHER_CLIENT])]
    shown = frame[frame.metric.isin([*_SHOWN, MAIN[task.modality]])]
    null = (shown.control != "none").map({True: " (null)", False: ""})
    shown = shown.assign(metric=shown.metric + null, value=shown.value.astype(float))
    table = shown.pivot_table(index="attack", columns="metric", values="value").reset_index()
    guessed = frame[frame.control == "none"]
    return table.assign(examples=len(guessed.drop_duplicates(["round", "client", "example"])))


def report_captures(folder: Path) -> pd.DataFrame:
    """``Results.efforts`` with the scores if there are any, and the pages written anew.

    Raises:
        StoreError: nothing was attacked.
    """
    check_folder(folder)
    started, run = time.monotonic(), open_run(folder)
    task = load_task(run.cells[0].captures.root, network=False)
    results = Results.of(run, task)
    frame = results.efforts().sort_values("attack", ignore_index=True)
    if is_scored(run):
        scores = run.scores
        frame = frame.merge(means(scores, task), on="attack", how="left")
        execute(run, ("report",), quiet=True)
    else:
        note_provenance(run, "report", time.monotonic() - started)
    write_page(results)
    return frame
