"""The tables of limits, and what is shown before a run."""

import json
import math
from typing import Any

import pytest

from experiments.analysis.findings import Findings
from experiments.bounds.information import most
from experiments.bounds.limits import limits
from experiments.bounds.records import LimitsRecord
from experiments.bounds.success import gaussian_bound, mechanism, success_bound
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run, read_rules
from experiments.preview.show import describe
from experiments.report.brackets import brackets, budgets
from experiments.report.limit_tables import Limits, limit_tables
from experiments.report.summary_file import judged
from experiments.report.tables import Number
from fedsim.accountant import noise_multiplier
from fedsim.store.files import read_record
from tests.apps.cases import IMAGES, TEXT, Make, merge, simulate
from tests.experiments.conftest import Said


def printed(run: Run) -> Limits:
    return limit_tables(run, limits(run, gaussian=False))


def test_a_private_run_has_bounds_of_success(make_run: Make) -> None:
    defenses = [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, {"name": "none"}]
    run = make_run(TEXT, federation={"rounds": 4}, defenses=defenses)
    found = printed(run)
    table = next(table for table in found.tables if table.name == "limits-success")
    assert {line["defense"] for line in table.rows} == {"DP-SGD (clip=1, noise_multiplier=1)"}
    for line in table.rows:
        without, one, whole = (line[c] for c in ("without", "one round", "all rounds"))
        assert isinstance(without, Number)
        assert isinstance(one, Number)
        assert isinstance(whole, Number)
        # What is scored was in the batch of its round for certain: sampling hides nothing there.
        assert one.value == pytest.approx(gaussian_bound(without.value, 1.0))
        assert one.value < whole.value < gaussian_bound(without.value, 2.0)
    assert len(table.rows) == 4
    kept = read_record(run.root / "limits.json", LimitsRecord)
    assert [success.without for success in kept.successes] == [
        line["without"].value  # type: ignore[union-attr]
        for line in table.rows
    ]
    assert json.loads(json.dumps(found.table()))["limits-ranks"][0]["attack"] == "span"
    assert "reconstruction robustness" in found.text()


def test_what_a_defense_claims(make_run: Make) -> None:
    run = make_run(TEXT, defenses=[{"name": "dp_client", "clip": 1.0, "noise_multiplier": 3.0}])
    bound = mechanism(run.cells[0].config, 10)
    assert bound is not None
    assert (bound.unit, bound.noise, bound.rounds) == ("update", 1.5, 2)
    exact = success_bound(0.1, steps=2, rate=1.0, noise_multiplier=1.5)
    assert bound.bound(0.1, 2) == exact == pytest.approx(gaussian_bound(0.1, math.sqrt(2) / 1.5))
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
    bound = mechanism(run.cells[0].config, 8)
    assert bound is not None
    assert bound.bound(0.1, 1) == pytest.approx(gaussian_bound(0.1, mu / 2))
    both, certain = bound.bound(0.1, 2), gaussian_bound(0.1, math.sqrt(2) * mu / 2)
    if changes == {"client_rows": 0}:
        assert both == pytest.approx(certain)  # all rows are used in each round
    elif "local_steps" not in changes:
        assert bound.bound(0.1, 1) < both < certain


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
    for line in printed(run).table()["limits-success"]:
        assert line["noise"] == pytest.approx(many)
        assert line["one round"] == pytest.approx(gaussian_bound(line["without"], 1 / many))
        assert line["all rounds"] == line["one round"]


@pytest.mark.slow
def test_a_run_of_images_is_bounded_from_both_sides(make_run: Make) -> None:
    defenses = [
        {"name": "gaussian_noise", "std": 0.01},
        {"name": "prune", "fraction": 0.9999},
        {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 30.0},
    ]
    run = make_run(
        IMAGES,
        task={"image_size": 8},
        federation={"clients": 2, "rounds": 1},
        metrics=["psnr", "mse"],
        defenses=defenses,
    )
    assert "limits-budgets" not in printed(run).table()  # nothing is simulated yet
    simulate(run)
    bare = printed(run).table()["limits-budgets"]
    assert [line["bounded by"] for line in bare] == [
        "noise on public gradients",
        "bits sent",
        "clipping and noise",
    ]
    assert {line["at least"] for line in bare} == {None}  # nothing is scored yet
    execute(run, ("attack", "score", "report"), quiet=True)
    known = read_record(run.root / "limits.json", LimitsRecord)
    noisy, pruned, private = limit_tables(run, known).table()["limits-budgets"]
    assert private["nats of a reply"] == pytest.approx(1 / (2 * 30.0**2))
    assert private["holds by bound"] == "yes"
    assert noisy["holds by bound"] == pruned["holds by bound"] == "no"
    for line in (noisy, pruned, private):
        ends = [line[name] for name in ("at most", "at most if Gaussian") if line[name] is not None]
        assert line["at least"] <= min(ends, default=math.inf) + 1.5  # of two images
    assert noisy["nats of a reply"] > 150 > pruned["nats of a reply"]

    shown = (run.root / "report" / "index.html").read_text()
    assert "<code>fedsim limits</code>" not in shown
    assert "How close a reconstruction can come" in shown
    assert "Whether exact attacks can work" in shown
    assert "holds by bound" in shown
    tables = (run.root / "report" / "tables").glob("limits-*.csv")
    kinds = {path.name.removeprefix("limits-") for path in tables}
    assert kinds == {"ranks.csv", "success.csv", "budgets.csv"}


def test_a_page_bounds_what_options_alone_tell(make_run: Make, said: Said) -> None:
    weak = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}
    strong = {**weak, "noise_multiplier": 20.0}
    run = make_run(
        TEXT,
        auxiliary={"split": "public", "rows": 20},
        federation={"rounds": 1},
        defenses=[weak, strong],
        verdict={"rouge": 0.05},
    )
    simulate(run)
    execute(run, ("attack", "score", "report"), quiet=True)
    reported = read_record(run.root / "summary.json", Findings)
    known = budgets(run.root, {cell.name: cell.config for cell in run.cells}, None)
    assert [budget.nats for budget in known.values()] == [0.5, 1 / 800]
    easier = {
        name: rule.model_copy(update={"rouge": 0.9}) for name, rule in read_rules(run.root).items()
    }
    for effect, findings in ((0.05, reported), (0.9, judged(run.root, easier))):
        (section,) = findings.sections
        words = {verdict.defense_options: verdict.word for verdict in section.evidence.verdicts}
        both = brackets(section, known)
        assert [bracket.most is None for bracket in both.values()] == [False, False]
        for place, bracket in both.items():
            assert bracket.holds == (words[place.defense_options] == "holds by bound")
            assert bracket.blind is not None
            assert bracket.most is not None
            nats = bracket.limit.nats
            assert bracket.most.value == pytest.approx(most(bracket.blind.value, nats))
            assert f"at most {bracket.most}" in bracket.said
        assert [bracket.holds for bracket in both.values()] == [effect == 0.9, True]
        code, out, _ = said("check", run.root, "--smallest", f"rouge={effect}")
        assert code == (effect == 0.05)
        weaker = "under DP-SGD (clip=1, noise_multiplier=1): "
        (line,) = out.splitlines()
        assert line.startswith("passed: 1 limit holds" if effect == 0.9 else weaker)
        assert line.endswith("holds" if effect == 0.9 else "(asked: no leak above 0.05 ROUGE-L)")


@pytest.mark.parametrize("rounds", [1, 2])
def test_public_gradients_say_nothing_of_other_rounds(
    rounds: int, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = {"name": "gaussian_noise", "std": 0.1}
    run = make_run(TEXT, federation={"rounds": rounds}, defenses=[noise])
    simulate(run)
    monkeypatch.setattr("experiments.bounds.limits.measured", lambda *_: 0.001)
    (found,) = limits(run, gaussian=False).budgets
    assert (found.nats, found.source) == (0.001, "noise on public gradients")
    assert found.all == pytest.approx(0.001) if rounds == 1 else found.all > 100


def test_show_tells_limits_and_time() -> None:
    config = parse_experiment(merge(IMAGES, {"attacks": [{"name": "inverting", "steps": 1000}]}))
    shown = describe(Plan(name=config.name, experiments=(config,)))
    text = shown.text()
    assert "closed_form    green  examples 1 of 1" in text
    assert json.loads(json.dumps(shown.table()))["experiments"][0]["cost"]["captures"] == 6
