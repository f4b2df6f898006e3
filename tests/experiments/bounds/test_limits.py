"""The tables of limits, and what is shown before a run."""

import json
import math
from typing import Any

import pytest

from experiments.bounds.limits import limits
from experiments.bounds.reconstruction_bound import gaussian_bound, success_bound
from experiments.bounds.records import CeilingLimit, LimitsRecord
from experiments.bounds.success import mechanism
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.preview.estimate import span
from experiments.preview.show import describe
from experiments.report.limit_tables import Limits, ceiling_table, limit_tables
from experiments.report.tables import Number
from experiments.stages.rows import read_rows
from fedsim.accountant import noise_multiplier
from fedsim.files import read_record
from fedsim.records import ScoreRow
from tests.apps.cases import IMAGES, TEXT, Make, merge, simulate
from tests.experiments.analysis.cases import row


def printed(run: Run, victims: int) -> Limits:
    return limit_tables(run, limits(run, victims))


def test_a_private_run_has_bounds_of_success(make_run: Make) -> None:
    defenses = [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, {"name": "none"}]
    run = make_run(TEXT, federation={"rounds": 4}, defenses=defenses)
    found = printed(run, 3)
    table = next(table for table in found.tables if table.name == "limits-success")
    assert {line[1] for line in table.rows} == {"DP-SGD (clip=1, noise_multiplier=1)"}
    column = {name: i for i, name in enumerate(table.columns)}
    for line in table.rows:
        without, one, whole = (line[column[c]] for c in ("without", "one round", "all rounds"))
        assert isinstance(without, Number)
        assert isinstance(one, Number)
        assert isinstance(whole, Number)
        # What is scored was in the batch of its round for certain: sampling hides nothing there.
        assert one.value == pytest.approx(gaussian_bound(without.value, 1.0))
        assert one.value < whole.value < gaussian_bound(without.value, 2.0)
    assert len(table.rows) == 4
    kept = read_record(run.root / "limits.json", LimitsRecord)
    assert [one.without for one in kept.successes] == [
        line[column["without"]].value  # type: ignore[union-attr]
        for line in table.rows
    ]
    assert json.loads(json.dumps(found.table()))["limits-ranks"][0]["attack"] == "span"
    assert "reconstruction robustness" in found.text()


def test_what_a_defense_claims(make_run: Make) -> None:
    run = make_run(TEXT, defenses=[{"name": "dp_client", "clip": 1.0, "noise_multiplier": 3.0}])
    found = mechanism(run.cells[0].config, 10)
    assert found is not None
    assert (found.unit, found.noise, found.rounds) == ("update", 1.5, 2)
    exact = success_bound(0.1, steps=2, rate=1.0, noise_multiplier=1.5)
    assert found.bound(0.1, 2) == exact == pytest.approx(gaussian_bound(0.1, math.sqrt(2) / 1.5))
    assert mechanism(make_run(TEXT, folder="b").cells[0].config, 10) is None


@pytest.mark.parametrize(
    ("changes", "mu"),
    [
        ({"client_rows": 0}, math.sqrt(3)),  # every row is in one step of each epoch
        ({"client_rows": 2}, math.sqrt(3)),
        ({"client_rows": 0, "local_steps": 12}, math.sqrt(2)),  # one epoch has eight steps
        ({"protocol": "fedsgd"}, 1.0),
    ],
)
def test_a_captured_example_is_in_one_sum_of_each_pass(
    changes: dict[str, Any], mu: float, make_run: Make
) -> None:
    federation = {"protocol": "fedavg", "batch_size": 1, "local_epochs": 3, **changes}
    defense = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 2.0}
    run = make_run(IMAGES, federation=federation, defenses=[defense])
    found = mechanism(run.cells[0].config, 8)
    assert found is not None
    assert found.bound(0.1, 1) == pytest.approx(gaussian_bound(0.1, mu / 2))
    both, certain = found.bound(0.1, 2), gaussian_bound(0.1, math.sqrt(2) * mu / 2)
    if changes == {"client_rows": 0}:
        assert both == pytest.approx(certain)  # all rows are used in each round
    elif "local_steps" not in changes:
        assert found.bound(0.1, 1) < both < certain


def test_bounds_hold_for_the_client_with_the_least_noise(make_run: Make) -> None:
    changes: dict[str, Any] = {
        "task": {"split": "train[:7]"},  # 3, 2 and 2 rows
        "auxiliary": None,
        "federation": {"rounds": 1},
        "defenses": [{"name": "dp_sgd", "clip": 1.0, "epsilon": 5.0}],
    }
    many, few = (
        noise_multiplier(steps=1, rate=1 / rows, target=5.0, delta=1e-5) for rows in (3, 2)
    )
    assert many < few
    run = make_run(IMAGES, **changes)
    for line in printed(run, 0).table()["limits-success"]:
        assert line["noise"] == pytest.approx(many)
        assert line["one round"] == pytest.approx(gaussian_bound(line["without"], 1 / many))
        assert line["all rounds"] == line["one round"]


def test_a_noisy_run_of_images_has_ceilings(make_run: Make) -> None:
    noise = {"name": "gaussian_noise", "std": 0.01}
    small = {"clients": 2, "rounds": 1}
    run = make_run(
        IMAGES, task={"image_size": 8}, federation=small, metrics=["psnr"], defenses=[noise]
    )
    assert "limits-ceilings" not in printed(run, 1).table()  # nothing is simulated yet
    simulate(run)
    (line,) = printed(run, 1).table()["limits-ceilings"]
    assert line["images"] == 1
    assert 10 < line["median"] == line["lowest"] < 60
    assert (line["best attack"], line["its median"]) == ("", None)  # nothing is scored yet
    execute(run, ("attack", "score"), quiet=True)
    (line,) = printed(run, 2).table()["limits-ceilings"]
    reached = [
        one.value
        for one in read_rows(run.root / "scores.parquet", ScoreRow)
        if (one.attack, one.metric, one.control) == ("inverting", "psnr", "none")
        if (one.round, one.client) in {(1, 0), (1, 1)}
    ]
    assert (line["images"], line["best attack"]) == (2, "Inverting Gradients")
    assert line["its median"] == pytest.approx(sum(one or 0.0 for one in reached) / 2)

    execute(run, ("report",), quiet=True)
    shown = (run.root / "report" / "index.html").read_text()
    assert "<code>fedsim limits</code>" not in shown
    assert "How close a reconstruction can come" in shown
    assert "Whether exact attacks can work" in shown
    assert "How often a guess can be right" not in shown  # no differential privacy
    tables = (run.root / "report" / "tables").glob("limits-*.csv")
    kinds = {path.name.removeprefix("limits-") for path in tables}
    assert kinds == {"ranks.csv", "ceilings.csv"}
    assert "limits-ceilings" not in printed(run, 0).table()


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ({"dlg": (8.0, 9.0, 30.0), "tag": (10.0, 10.0, 0.0)}, ("TAG", 10.0)),  # round 2 is no limit
        ({"dlg": (8.0, 9.0, 30.0), "tag": (20.0, None, 0.0)}, ("DLG", 8.5)),  # tag was skipped once
        ({"prior_only": (8.0, 9.0, 30.0)}, (None, None)),
    ],
)
def test_the_best_attack_is_that_on_the_captures_of_the_ceiling(
    values: dict[str, tuple[float | None, ...]], best: tuple[str | None, float | None]
) -> None:
    captures = [(1, 0), (1, 1), (2, 0)]
    rows = [
        row(attack=attack, value=value, round=round_, client=client, attack_options="{}")
        for attack, found in values.items()
        for value, (round_, client) in zip(found, captures, strict=True)
    ]
    who = {"run": "r", "cell": "c0", "defense": "none", "defense_options": "{}"}
    ceilings = [
        CeilingLimit(**who, round=round_, client=client, std=0.1, psnr=30.0, prior="")
        for round_, client in captures[:2]
    ]
    (line,) = ceiling_table(ceilings, {"c0": ""}, rows).rows
    assert (line[7] or None, line[8] and float(str(line[8]))) == best


def test_show_tells_limits_and_time() -> None:
    config = parse_experiment(merge(IMAGES, {"attacks": [{"name": "inverting", "steps": 1000}]}))
    shown = describe(Plan(name=config.name, experiments=(config,)))
    text = shown.text()
    assert "closed_form    green  examples 1 of 1" in text
    cost = shown.parts[0].cost
    ((step, count),) = cost.time.steps.values()
    assert count == 1000
    assert step > 0
    assert 6 * 1000 * step < cost.time.attacks < 1.2 * 6 * 1000 * step
    assert cost.time.simulation > 6 * cost.time.step / 2 * 0.99
    assert "searches: about" in text
    assert json.loads(json.dumps(shown.table()))["experiments"][0]["cost"]["captures"] == 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0023, "2.3 ms"), (0.25, "250 ms"), (4, "4.0 s"), (720, "12 min"), (12_600, "3.5 h")],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text
