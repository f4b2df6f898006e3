"""Scores of inferred properties against the rows that were used; rows of ``properties.parquet``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from experiments.plan.entries import Entry, entries
from experiments.plan.folder import Run
from experiments.stages.controls import controls
from experiments.stages.donors import Donor
from experiments.stages.score import Scorer
from fedsim.api.guesses import read_scores
from fedsim.api.victims import Victims
from fedsim.capture import CaptureKey
from fedsim.records import ScoreRow
from fedsim.rows import write_rows

CALLED = 0.5
"""Probability from which a word counts as named."""
_BINS = 10


def score_properties(run: Run) -> None:
    """Write ``properties.parquet`` if an attack of the run infers properties."""
    if any(
        e.infers == "properties" for experiment in run.plan.experiments for e in entries(experiment)
    ):
        rows = [r for c in run.cells for r in PropertyScorer(Scorer(Victims(c))).rows()]
        write_rows(run.root / "properties.parquet", ScoreRow, rows)


@dataclass(frozen=True)
class PropertyScorer:
    """Compares what is said of a client after a round with all its rows of captures so far.

    The same said of another client is the control.
    """

    scorer: Scorer

    def rows(self) -> Iterator[ScoreRow]:
        """By attack, capture, control and metric."""
        victims = self.scorer.victims
        chosen = [e for e in entries(victims.cell.experiment) if e.infers == "properties"]
        others = controls(victims) if chosen else {}
        for entry in chosen:
            for key in victims.keys:
                for control, donor in {"none": Donor(key), **others[key]}.items():
                    yield from self._compare(entry, key, donor, control)

    def _compare(
        self, entry: Entry, key: CaptureKey, donor: Donor, control: str
    ) -> Iterator[ScoreRow]:
        record, estimate = read_scores(self.scorer.victims, *donor.source(entry.label, key))
        common = self.scorer.columns(entry, key, record, control)
        words = entry.table.get("of") == "words"
        if words and estimate is not None:
            estimate[list(self.scorer.victims.task.spec.special_ids)] = 0
        truth = self._held[key] if words else self._shares[key]
        values = (words_told if words else classes_told)(estimate, truth)
        for metric, value in values.items():
            yield ScoreRow(
                **common,
                example=0,
                metric=metric,
                unit="1",
                value=None if estimate is None else value,
                certified=None,
            )

    @cached_property
    def _held(self) -> dict[CaptureKey, Tensor]:
        """The distinct words, special tokens aside, of a client's rows so far, ascending."""
        special = torch.tensor(self.scorer.victims.task.spec.special_ids)
        by_key = {}
        for key in self.scorer.victims.keys:
            used = [self.scorer.victims.batch(seen_key) for seen_key in self._until(key)]
            words = torch.cat([b.inputs[b.mask == 1] for b in used if b.mask is not None]).unique()
            by_key[key] = words[~torch.isin(words, special)]
        return by_key

    @cached_property
    def _shares(self) -> dict[CaptureKey, Tensor]:
        """The share of each class among a client's rows so far."""
        by_key = {}
        for key in self.scorer.victims.keys:
            labels = [self.scorer.victims.batch(earlier).labels for earlier in self._until(key)]
            counts = torch.cat(labels).bincount(minlength=self.scorer.victims.task.spec.num_classes)
            by_key[key] = counts / counts.sum()
        return by_key

    def _until(self, key: CaptureKey) -> list[CaptureKey]:
        keys = self.scorer.victims.keys
        return [other for other in keys if other.client == key.client and other.round <= key.round]


def classes_told(estimate: Tensor | None, truth: Tensor) -> dict[str, float]:
    """Half the absolute differences between the shares; of uniform shares where none are told."""
    guess = torch.full_like(truth, 1 / len(truth)) if estimate is None else estimate
    return {"class_distance": float((guess - truth).abs().sum() / 2)}


def words_told(estimate: Tensor | None, held: Tensor) -> dict[str, float | None]:
    """How good the probabilities of all words are.

    ``word_calibration``: mean distance between probability and frequency in ten bins, over the
    words of at least 5 %; the others are nearly all of the vocabulary, and nearly all not held.
    """
    if estimate is None:
        return dict.fromkeys(("word_precision", "word_recall", "word_calibration"))
    truth = torch.zeros(len(estimate), dtype=torch.bool)
    truth[held] = True
    named = estimate >= CALLED
    right = int((named & truth).sum())
    likely = estimate >= 0.05
    bins = (estimate[likely] * _BINS).long().clamp(max=_BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(
        0, bins, estimate[likely] - truth[likely].double()
    )
    return {
        "word_precision": right / int(named.sum()) if named.any() else None,
        "word_recall": right / max(1, len(held)),
        "word_calibration": float(gaps.abs().sum() / likely.sum()) if likely.any() else None,
    }
