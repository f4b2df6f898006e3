"""Scores of membership attacks against who really took part; rows of ``membership.parquet``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from experiments.plan.entries import Entry, entries
from experiments.plan.folder import Run
from experiments.stages.attack import Donor
from experiments.stages.score import Scorer, controls
from fedsim.api.guesses import read_scores
from fedsim.api.victims import Victims
from fedsim.records import CONTROLS, FRESH_ROW, UNSCORED, JobRecord, ScoreRow
from fedsim.store.capture import CaptureKey
from fedsim.store.rows import write_rows
from fedsim.types import Batch

RATES = {"membership_tpr_1": 0.01, "membership_tpr_01": 0.001}
"""Metric -> the false positive rate at which members are found."""


def score_membership(run: Run) -> None:
    """Write ``membership.parquet`` if an attack of the run infers membership."""
    if any(
        e.infers == "membership" for experiment in run.plan.experiments for e in entries(experiment)
    ):
        rows = [r for c in run.cells for r in MembershipScorer(Scorer(Victims(c))).rows()]
        write_rows(run.root / "membership.parquet", ScoreRow, rows)


@dataclass(frozen=True)
class MembershipScorer:
    """Ranks the members of each update among the fresh candidates, which nobody used.

    The mean of ``membership_auc`` over members is the area under the ROC curve. The mean of a
    ``membership_tpr`` is the true positive rate where a member is called if no more than that share
    of the fresh rows and itself reaches its score. The threshold is one for each update. There are
    two controls: the same members ranked by the scores for another client's update, and a fresh row
    in the place of each member.
    """

    scorer: Scorer

    def rows(self) -> Iterator[ScoreRow]:
        """By attack, capture, control, member and metric; none without candidates."""
        victims = self.scorer.victims
        chosen = self.scorer.that_infer("membership")
        others = controls(victims) if chosen else {}
        for entry in chosen:
            scores_of = lru_cache(None)(partial(read_scores, victims))
            for key in victims.keys:
                donors = [Donor(key), Donor(key), *others[key]]
                for control, donor in zip(("none", FRESH_ROW, *CONTROLS), donors, strict=False):
                    scores = scores_of(*donor.source(entry.label, key))
                    yield from self._rank(entry, key, *scores, control)

    def _rank(
        self, entry: Entry, key: CaptureKey, record: JobRecord, scores: Tensor | None, control: str
    ) -> Iterator[ScoreRow]:
        common = self.scorer.columns(entry, key, record, control)
        numbers = self.scorer.victims.records[key].rows
        members, others = self._members[key], torch.tensor(self._fresh)
        for turn, (example, candidate) in enumerate(members.items()):
            if control == FRESH_ROW:
                turn += key.client * len(members)
                candidate = self._fresh[turn % len(self._fresh)]
                others = torch.tensor([fresh for fresh in self._fresh if fresh != candidate])
            values: dict[str, float | None] = dict.fromkeys(("membership_auc", *RATES))
            if scores is not None:
                values = ranked(float(scores[candidate]), scores[others])
            elif record.status not in UNSCORED:
                values = {"membership_auc": 0.5, **dict.fromkeys(RATES, 0.0)}
            for metric, value in values.items():
                yield ScoreRow(
                    **common,
                    example=example,
                    row=numbers[example],
                    metric=metric,
                    unit="1" if metric == "membership_auc" else "rate",
                    value=value,
                    certified=None,
                )

    @cached_property
    def _places(self) -> dict[Any, int]:
        """Content of each candidate -> its number."""
        rows = self.scorer.victims.cell.captures.candidates()
        return {} if rows is None else {content(rows, i): i for i in range(len(rows))}

    @cached_property
    def _members(self) -> dict[CaptureKey, dict[int, int]]:
        """For each capture, example -> candidate, for the examples that are among them."""
        by_key = {}
        for key in self.scorer.victims.keys:
            batch = self.scorer.victims.batch(key)
            places = {i: self._places.get(content(batch, i)) for i in range(len(batch))}
            by_key[key] = {i: place for i, place in places.items() if place is not None}
        return by_key

    @cached_property
    def _fresh(self) -> list[int]:
        """The candidates behind no captured update."""
        used = {place for places in self._members.values() for place in places.values()}
        return sorted(set(self._places.values()) - used)


def ranked(score: float, fresh: Tensor) -> dict[str, float | None]:
    """The metrics of one member, given the scores of the fresh rows.

    None for a rate that so few fresh rows cannot show.
    """
    above, equal, least = int((fresh > score).sum()), int((fresh == score).sum()), 1 + len(fresh)
    called = {
        metric: None if rate * least < 1 else float(1 + above + equal <= rate * least)
        for metric, rate in RATES.items()
    }
    return {"membership_auc": 1 - (above + equal / 2) / len(fresh), **called}


def content(batch: Batch, row: int) -> bytes:
    """What a row is known by: its pixels, or its real tokens."""
    inputs = batch.inputs[row]
    if batch.mask is not None:
        inputs = inputs[batch.mask[row] == 1]
    pixels: bytes = torch.clone(inputs).numpy().tobytes()
    return pixels
