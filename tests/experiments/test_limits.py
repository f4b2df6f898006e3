"""The tables of limits, and what is shown before a run."""

import json
import math

import pytest

from experiments.config import Plan, parse_experiment
from experiments.estimate import span
from experiments.limits import limits
from experiments.show import describe
from experiments.success import mechanism
from experiments.tables import Number
from fedsim.reconstruction_bound import gaussian_bound, success_bound
from tests.apps.cases import IMAGES, TEXT, Make, merge, simulate


def test_a_private_run_has_bounds_of_success(make_run: Make) -> None:
    defenses = [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, {"name": "none"}]
    run = make_run(TEXT, federation={"rounds": 4}, defenses=defenses)
    found = limits(run, 3)
    table = next(table for table in found.tables if table.name == "limits-success")
    assert {row[1] for row in table.rows} == {
        "dp_sgd (clip=1.0, delta=1e-05, epsilon=null, noise_multiplier=1.0)"
    }
    column = {name: i for i, name in enumerate(table.columns)}
    for row in table.rows:
        without, one, whole = (row[column[c]] for c in ("without", "one round", "all rounds"))
        assert isinstance(without, Number)
        assert isinstance(one, Number)
        assert isinstance(whole, Number)
        assert without.value < one.value < whole.value < gaussian_bound(without.value, 2.0)
    assert len(table.rows) == 4
    assert (run.root / "report/tables/limits-success.csv").exists()
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


def test_a_noisy_run_of_images_has_ceilings(make_run: Make) -> None:
    noise = {"name": "gaussian_noise", "std": 0.01}
    run = make_run(IMAGES, task={"image_size": 8}, defenses=[noise])
    assert "limits-ceilings" not in limits(run, 1).table()  # nothing is simulated yet
    simulate(run)
    (row,) = limits(run, 1).table()["limits-ceilings"]
    assert row["images"] == 1
    assert 10 < row["median"] == row["lowest"] < 60
    assert "limits-ceilings" not in limits(run, 0).table()


def test_show_tells_limits_and_time() -> None:
    config = parse_experiment(merge(IMAGES, {"attacks": [{"name": "inverting", "steps": 1000}]}))
    shown = describe(Plan(name=config.name, experiments=(config,)))
    text = shown.text()
    assert "closed_form    green  examples 1 of 1" in text
    cost = shown.parts[0].cost
    ((step, count),) = cost.time.steps.values()
    assert count == 1000
    assert step > 0
    assert cost.time.attacks == pytest.approx(6 * 1000 * step / 2)
    assert cost.time.simulation > 6 * cost.time.step / 2 * 0.99
    assert "searches: about" in text
    assert json.loads(json.dumps(shown.table()))["experiments"][0]["cost"]["captures"] == 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0023, "2.3 ms"), (0.25, "250 ms"), (4, "4.0 s"), (720, "12 min"), (12_600, "3.5 h")],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text
