"""The score stage on another application's captures, for who holds the private examples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.external.page import write_page
from experiments.external.run import ExternalRun, Outcome, task_in
from experiments.external.scoring import scores_of
from experiments.plan.folder import note_provenance
from experiments.stages.rows import read_rows, write_rows
from fedsim.build import registry
from fedsim.capture import CaptureKey, CaptureStore
from fedsim.errors import StoreError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.records import MAIN, OTHER_CLIENT, ScoreRow, UtilityRow
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification
from fedsim.truth import TruthStore
from fedsim.types import Batch

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ("exact_match", "rouge1", "rougeL", "psnr", "mse")


def score_captures(folder: Path, truth: Path) -> pd.DataFrame:
    """Mean scores of each attack over all examples whose truth is known.

    ``run/scores.parquet`` has a row for each example and metric, as that of any run. The null is
    the score of the attack's guess on another client's update, or on another round's sum of a
    cohort that is alone in its round.

    Raises:
        StoreError: nothing was attacked, or the truth is missing.
    """
    started, task, private = time.monotonic(), task_in(folder), TruthStore(truth)
    known = private.by_capture() if truth.is_dir() else {}
    if not any(key in known for key in CaptureStore(folder).keys()):
        raise StoreError(
            f"{truth}: holds no examples of these captures. Pass the folder that truth_mod wrote "
            "in the same run."
        )
    run = ExternalRun.open(folder)
    made = [one for one in run.outcomes(task) if one.record.key in known]
    if not any(one.guess for one in made):
        raise StoreError(
            f"{folder}: no attack left a guess. Run another one: fedsim attack {folder}."
        )
    truths = {}
    for key in {one.record.key for one in made}:
        batch = private.load(key, run.captures.record(key).nodes)
        truths[key] = task.examples(_pixels(batch, task))
    rows = [row for one in made if one.guess for row in _scored(run, one, made, truths, task)]
    write_rows(run.root / "scores.parquet", ScoreRow, rows)
    write_rows(run.root / "utility.parquet", UtilityRow, [])
    note_provenance(run.plain, "score", time.monotonic() - started)
    write_page(run, task)
    return means(rows, task)


def _pixels(batch: Batch, task: Task) -> Batch:
    """A batch in its owner's shape and range, as attacks hold it."""
    if not isinstance(task, ImageClassification):
        return batch
    return Batch(task.form.read(batch.inputs), batch.labels, batch.mask)


def _scored(
    run: ExternalRun,
    one: Outcome,
    made: Sequence[Outcome],
    truths: dict[CaptureKey, Examples],
    task: Task,
) -> Iterator[ScoreRow]:
    """The rows of a guess, and of the null beside it."""
    key, record = one.record.key, one.record
    seen = run.captures.record(key)
    alike = [k for k in made if k.record.attack == record.attack and k is not one]
    others = [k for k in alike if k.record.key.client != key.client]
    same_round = [k for k in others if k.record.key.round == key.round]
    others = others or (alike if seen.nodes else [])
    units = {name: cls().unit for name, cls in registry(METRICS, "fedsim.metrics").items()}
    null = next(iter(same_round or others), None)
    for control, fed in (("none", one), (OTHER_CLIENT, null)):
        if fed is None or fed.guess is None:
            continue
        found = scores_of(
            record.attack, fed.guess.examples, fed.guess.confidence, truths[key], task
        )
        for metric, values in found.values.items():
            for example, value in enumerate(values):
                yield ScoreRow(
                    run=run.captures.root.name,
                    cell=run.cell,
                    seed=0,
                    task=task.spec.kind,
                    model=task.spec.model,
                    dataset="captures",
                    split="",
                    protocol="fedsgd" if seen.kind == "gradient" else "fedavg",
                    batch_size=seen.knowledge.batch_size or 0,
                    local_steps=seen.knowledge.local_steps or 0,
                    defense="none",
                    defense_options="[]",
                    attack=record.attack,
                    attack_options="{}",
                    adaptive=False,
                    control=control,
                    round=key.round,
                    client=key.client,
                    probe="none",
                    example=example,
                    metric=metric,
                    value=value if value == value else None,
                    unit=units[metric],
                    status=fed.record.status,
                    reason=fed.record.reason,
                    objective=fed.record.objective,
                    certified=found.certified[example] if fed.record.confidence else None,
                    level=None,
                    seconds=fed.record.seconds,
                )


def means(rows: Sequence[ScoreRow], task: Task) -> pd.DataFrame:
    """Mean of each metric that is shown, beside its null, by attack."""
    import pandas as pd

    columns = ("attack", "round", "client", "example", "control", "metric", "value")
    table = [tuple(getattr(row, name) for name in columns) for row in rows]
    frame = pd.DataFrame(table, columns=columns)
    shown = frame[frame.metric.isin([*_SHOWN, MAIN[task.modality]])]
    null = (shown.control != "none").map({True: " (null)", False: ""})
    shown = shown.assign(metric=shown.metric + null, value=shown.value.astype(float))
    found = shown.pivot_table(index="attack", columns="metric", values="value").reset_index()
    own = frame[frame.control == "none"]
    return found.assign(examples=len(own.drop_duplicates(["round", "client", "example"])))


def report_captures(folder: Path) -> pd.DataFrame:
    """One row for each attack, and the page written anew.

    Columns: how many captures it was run on, guesses, examples that an update proves, mean
    objective, mean cosines of ``evidence.Fit`` with their null, and the scores if there are any.

    Raises:
        StoreError: nothing was attacked.
    """
    import pandas as pd

    started, run, task = time.monotonic(), ExternalRun.open(folder), task_in(folder)
    made = list(run.outcomes(task))
    rows = []
    for name in sorted({one.record.attack for one in made}):
        mine = [one for one in made if one.record.attack == name]
        fits = [one.fit for one in mine if one.fit is not None]
        rows.append(
            {
                "attack": name,
                "captures": len(mine),
                "guesses": sum(one.guess is not None for one in mine),
                "certified": sum(one.certified for one in mine),
                "objective": _mean([one.record.objective for one in mine]),
                "cosine": _mean([fit.own for fit in fits]),
                "cosine (null)": _mean([fit.other for fit in fits]),
            }
        )
    frame, scored = pd.DataFrame(rows), run.root / "scores.parquet"
    if scored.exists() and (known := _of(run, read_rows(scored, ScoreRow))):
        frame = frame.merge(means(known, task), on="attack", how="left")
    note_provenance(run.plain, "report", time.monotonic() - started)
    write_page(run, task)
    return frame


def _of(run: ExternalRun, rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Those of the latest attacks."""
    return [row for row in rows if row.cell == run.cell]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
