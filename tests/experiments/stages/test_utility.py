"""Seeds that are trained and not attacked tell how far utility scatters, and cost nothing else."""

import csv
import math
from statistics import fmean

import pytest

from experiments.analysis.findings import RoundUtility, settled
from experiments.checks.capture_check import examine
from experiments.pipeline import execute
from experiments.preview.show import describe
from fedsim.errors import ConfigError
from fedsim.records import ScoreRow, UtilityRow
from fedsim.store.rows import read_rows
from tests.apps.cases import IMAGES, Make

SMALL = {
    "task": {"model": "mlp", "split": "train", "heldout_rows": 40},
    "auxiliary": None,
    "federation": {"clients": 2, "rounds": 3, "batch_size": 8, "learning_rate": 0.02},
    "capture": {"rounds": [3]},
    "metrics": ["psnr"],
    "defenses": [{"name": "none"}, {"name": "gaussian_noise", "std": 1.0}],
    "attacks": [{"name": "prior_only"}],
}
T_OF_2 = 4.302653  # 97.5 % of Student's t with two degrees of freedom


@pytest.mark.slow
def test_utility_has_an_interval_and_only_the_seeds_are_attacked(make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL, utility_seeds=[1, 2])
    outcome = execute(run, ("simulate", "attack", "score", "report"), quiet=True)
    assert outcome.statuses == {"done": 4}
    assert {row.seed for row in read_rows(run.root / "scores.parquet", ScoreRow)} == {0}
    assert len(examine(run).findings) == 4
    alone = [cell for cell in run.cells if cell.config.seed]
    assert len(alone) == 4
    assert not any(list(cell.folder.glob("*/round-*")) for cell in alone)

    ends = {
        (row.defense, row.seed): row.value
        for row in read_rows(run.root / "utility.parquet", UtilityRow)
        if (row.round, row.metric) == (3, "accuracy")
    }
    changes = [ends["gaussian_noise", seed] - ends["none", seed] for seed in range(3)]
    path = run.root / "report" / "tables" / "defenses.csv"
    none, noise = csv.DictReader(path.open())
    assert float(none["utility"]) == pytest.approx(fmean(ends["none", s] for s in range(3)))
    assert none["utility change"] == ""
    assert float(noise["utility change"]) == pytest.approx(fmean(changes))
    variance = sum((change - fmean(changes)) ** 2 for change in changes) / 2
    half = T_OF_2 * math.sqrt(variance / 3)
    assert half > 0
    assert float(noise["utility change high"]) == pytest.approx(fmean(changes) + half, abs=1e-5)
    page = (run.root / "report" / "index.html").read_text()
    assert "more seeds, for utility alone" in page


def test_show_counts_no_capture_of_them(make_run: Make) -> None:
    plain, more = (
        describe(make_run(IMAGES, folder=str(len(seeds)), **SMALL, utility_seeds=seeds).plan)
        for seeds in ([], [1, 2])
    )
    assert (plain.parts[0].cost.captures, more.parts[0].cost.captures) == (4, 4)
    assert len(more.parts[0].cells) == 3 * len(plain.parts[0].cells)


def test_a_seed_is_not_both(make_run: Make) -> None:
    with pytest.raises(ConfigError, match=r"utility_seeds: .* 0 is already one of seeds"):
        make_run(IMAGES, **SMALL, utility_seeds=[0])


def test_a_diverged_seed_takes_the_interval_away() -> None:
    values = {0: 0.5, 1: math.nan}
    measured = RoundUtility(
        setting="",
        defense="none",
        defense_options="",
        round=1,
        values={"accuracy": math.nan},
        by_seed={"accuracy": values},
        spent=None,
        bytes_up=0,
    )
    end = settled([measured])
    assert end is not None
    spread = end.over_seeds("accuracy")
    assert spread is not None
    assert math.isnan(spread[0])
    assert spread[1:] == (None, None)
    assert end.over_seeds("loss") is None
