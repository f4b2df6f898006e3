"""Every private example beside what the attacks made of it, for the report's gallery."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from experiments.plan.entries import entries
from experiments.plan.folder import Run
from experiments.report.gallery import Example
from experiments.stages.score import Scorer, certified
from fedsim.errors import StoreError
from fedsim.metrics.base import Examples
from fedsim.records import PRIOR_ONLY


def victims(run: Run) -> list[Example]:
    """Every client's example beside its guess, for the page; private, and never in a table."""
    if not (run.root / "scores.parquet").exists():
        raise StoreError(f"{run.root}: nothing is scored. Run fedsim score {run.root} first.")
    return [example for cell in run.cells for example in _examples(Scorer(cell))]


def _examples(scorer: Scorer) -> Iterator[Example]:
    image = scorer.task.modality == "image"
    for entry in entries(scorer.cell.experiment):
        if entry.table["name"] == PRIOR_ONLY:  # it made its guess without the victim
            continue
        for key in (key for key in scorer.keys if scorer.probes[key] == "none"):
            guess, truth = scorer.guess(entry.label, key), scorer.truths[key]
            if guess.record.status == "skipped":
                continue
            values, assignment, aligned = scorer.values(guess.examples, truth)
            for index, matched in enumerate(assignment):
                yield Example(
                    cell=scorer.cell.name,
                    attack=str(entry.table["name"]),
                    attack_options=entry.options,
                    key=key,
                    index=index,
                    modality=scorer.task.modality,
                    original=_shown(truth, index, image),
                    guess=None if matched is None else _shown(aligned, index, image),
                    metrics={name: column[index] for name, column in values.items()},
                    certified=certified(guess.record, matched),
                )


def _shown(examples: Examples, index: int, image: bool) -> Tensor | tuple[str, ...]:
    return examples.batch.inputs[index] if image else tuple(examples.words[index].split())
