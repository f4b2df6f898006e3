"""Rows as frames: no order, no missing value and no NaN is lost on the way."""

import math
import random

from experiments.analysis.frames import by_status, frame, jobs, score_frame, victims
from experiments.analysis.keys import VictimKey
from fedsim.records import ScoreRow
from fedsim.store.rows import columns
from tests.experiments.analysis.cases import row

SETTINGS = {"c0": "batch_size=4"}


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = [row(client=c, round=r, value=float(c)) for c in range(12) for r in (1, 2, 10)]
    shuffled = random.Random(0).sample(rows, len(rows))
    found, again = score_frame(rows, SETTINGS), score_frame(shuffled, SETTINGS)
    assert victims(found) == victims(again)
    assert set(found.setting) == {"batch_size=4"}
    assert sorted(victims(found)) == sorted(
        VictimKey(0, c, r, 0, -1) for c in range(12) for r in (1, 2, 10)
    )
    assert victims(found)[0].owner == 0


def test_a_missing_value_is_not_a_nan() -> None:
    rows = [row(value=None, client=0), row(value=math.nan, client=1), row(value=2.0, client=2)]
    table = score_frame(rows, SETTINGS)
    assert table.has_value.tolist() == [False, True, True]
    assert table.value.tolist()[0] is None
    assert math.isnan(table.value.tolist()[1])
    assert table.certified.tolist() == [None] * 3


def test_optional_numbers_stay_whole_numbers() -> None:
    assert frame([row(row=None), row(row=7)], ScoreRow).row.tolist() == [None, 7]
    assert frame([], ScoreRow).columns.tolist() == list(columns(ScoreRow))


def test_a_job_counts_once_however_many_metrics_it_has() -> None:
    rows = [row(metric=metric, client=c) for metric in ("psnr", "mse") for c in (0, 1)]
    rows += [row(client=2, value=None, status="skipped")]
    counts = by_status(jobs(score_frame(rows, SETTINGS)))
    assert counts == {
        "done": 2,
        "skipped": 1,
        "failed": 0,
        "timeout": 0,
        "exhausted": 0,
        "interrupted": 0,
    }
    assert sum(by_status(jobs(score_frame([], {}))).values()) == 0
