"""The tables of limits, and what is shown before a run."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.observed.replay import replay
from experiments.analysis.findings import Findings
from experiments.bounds.budgets import ExampleReply, bits_sent, own_captures
from experiments.bounds.information import most
from experiments.bounds.limits import (
    InformationSpectrum,
    ceiling,
    information,
    limits,
    spectrum_precision,
    unfold,
)
from experiments.bounds.records import LimitsRecord
from experiments.bounds.success import Noise, gaussian_bound, mechanism, noise, success_bound
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run, read_rules
from experiments.preview.show import describe
from experiments.report.brackets import brackets, budgets
from experiments.report.limit_tables import Limits, limit_tables
from experiments.report.run_results import judged
from experiments.report.tables import Number
from fedsim.accountant import noise_multiplier
from fedsim.defenses.encoding import Encoding
from fedsim.magnitudes import cut
from fedsim.store.files import read_record
from fedsim.tasks import load_task
from fedsim.types import Batch
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


@pytest.mark.slow
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


@pytest.mark.some(2)
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


SMALL = {"task": {"image_size": 8}, "federation": {"rounds": 1, "clients": 2}}


def test_the_spectrum_of_white_images_is_flat_and_of_smooth_ones_is_not() -> None:
    rng = torch.Generator().manual_seed(1)
    white = 0.5 + 0.1 * torch.randn(4000, 2, 4, 4, generator=rng)
    precision = spectrum_precision(white)
    assert torch.allclose(precision.diagonal(), torch.full((32,), 100.0).double(), rtol=0.1)
    assert float((precision - precision.diagonal().diag()).abs().max()) < 20
    smooth = white.mean((2, 3), keepdim=True).expand_as(white) + 0.01 * white
    variance = torch.linalg.inv(spectrum_precision(smooth))
    # Pixels of a channel move together, and those of two channels do not.
    assert float(variance[0, 1] / variance[0, 0]) > 0.8
    assert abs(float(variance[0, 16] / variance[0, 0])) < 0.2


@pytest.mark.parametrize("share", [math.inf, 0.5])
def test_information_is_that_of_autograd(share: float, make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL)
    simulate(run)
    cell = run.cells[0]
    key = cell.captures.keys()[0]
    task, batch = load_task(cell.captures.root), cell.truth.load(key)
    model = replay(cell.captures.load(key), task, torch.device("cpu"), torch.float64)
    images = batch.inputs.double()
    parts = model.gradient(Batch(images, batch.labels)).values()
    length = float(torch.cat([part.detach().flatten() for part in parts]).norm())

    def gradient(inputs: Tensor) -> Tensor:
        update = model.gradient(Batch(inputs, batch.labels))
        kept = update if share == math.inf else cut(update, share * length)
        return torch.cat([value.flatten() for value in kept.values()])

    # A few directions, by central differences.
    step = 1e-5
    pixels = torch.eye(images.numel(), dtype=torch.float64)[:5].view(-1, *images.shape)
    columns = [
        (gradient(images + step * d) - gradient(images - step * d)).detach() / (2 * step)
        for d in pixels
    ]
    expected = torch.stack(columns) @ torch.stack(columns).T
    clip = math.inf if share == math.inf else share * length
    reply = ExampleReply(replay(cell.captures.load(key), task, torch.device("cpu")), clip)
    unfold(reply.model.network)
    found = information(reply, batch)
    assert torch.allclose(found[:5, :5], expected, rtol=1e-3, atol=1e-6 * float(expected.max()))


def test_an_image_drawn_from_the_prior_has_its_spectrum() -> None:
    rng = torch.Generator().manual_seed(2)
    rough = torch.randn(500, 1, 4, 4, generator=rng)
    smooth = 0.5 + 0.1 * (rough.mean((2, 3), keepdim=True) + 0.2 * rough)
    prior = InformationSpectrum.of(smooth)
    drawn = prior.draw(4000, rng)
    exact = torch.linalg.inv(prior.precision)
    assert torch.allclose(drawn.T.cov(), exact, atol=0.1 * float(exact.max()))
    assert float(prior.power.sum()) == pytest.approx(float(exact.trace()), rel=1e-6)


@pytest.mark.slow
def test_less_noise_raises_the_ceiling(make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL)
    simulate(run)
    cell = run.cells[0]
    prior = InformationSpectrum.of(cell.captures.auxiliary().inputs)
    shared: dict[str, Tensor] = {}
    low, high, flat = (
        ceiling(cell, Noise(std, math.inf, 1, ""), prior, shared) for std in (1e-3, 1e-1, 1e4)
    )
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert len(shared) == 1  # the Jacobians are shared
    assert low > high + 5
    blind = -10 * math.log10(float(prior.power.mean()))
    assert flat == pytest.approx(blind, abs=0.01)  # nothing is seen but the prior
    assert ceiling(cell, Noise(1.0, math.inf, 1, "a reason"), prior) == "a reason"


GAUSSIAN = {"name": "gaussian_noise", "std": 0.1}
CLIP = {"name": "clip", "norm": 2.0}


@pytest.mark.parametrize(
    ("chain", "federation", "std", "nats"),
    [
        ([GAUSSIAN], {"batch_size": 4}, 0.4, math.inf),
        ([{**GAUSSIAN, "stage": "sample"}], {"batch_size": 4}, 0.2, math.inf),
        ([CLIP, GAUSSIAN, {"name": "sign"}], {"batch_size": 1}, 0.1, 200.0),
        ([{"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 0.5}], {"batch_size": 4}, 1.0, 2.0),
        (
            [{"name": "dp_client", "clip": 2.0, "noise_multiplier": 0.5}],
            {"batch_size": 4},
            4.0,
            2.0,
        ),
        (
            [{"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 0.5}],
            {"protocol": "fedavg", "batch_size": 1, "client_rows": 0, "local_epochs": 3},
            1.0,
            6.0,  # an example is in a sum of each of three epochs
        ),
        ([GAUSSIAN], {"protocol": "fedavg", "batch_size": 1, "learning_rate": 0.5}, 0.2, math.inf),
    ],
)
def test_noise_on_the_scale_of_one_gradient(
    chain: list[dict[str, object]],
    federation: dict[str, object],
    std: float,
    nats: float,
    make_run: Make,
) -> None:
    run = make_run(IMAGES, federation=federation, defenses=[{"chain": chain}])
    declared = noise(run.cells[0].config, 8)
    assert declared is not None
    assert declared.std == pytest.approx(std)
    assert declared.clipped == pytest.approx(nats)


@pytest.mark.parametrize(
    ("chain", "federation", "reason"),
    [
        ([{"name": "prune", "fraction": 0.5}, GAUSSIAN], {}, None),
        ([{"name": "prune", "fraction": 0.5}], {}, None),
        ([CLIP, GAUSSIAN], {"batch_size": 2}, "clipping mixes the examples of a batch"),
        ([GAUSSIAN], {"protocol": "fedavg", "optimizer": "adam"}, "a reply is not one gradient"),
        ([GAUSSIAN], {"protocol": "fedavg", "local_steps": 2}, "a reply is not one gradient"),
    ],
)
def test_where_gradients_say_nothing(
    chain: list[dict[str, object]],
    federation: dict[str, object],
    reason: str | None,
    make_run: Make,
) -> None:
    run = make_run(IMAGES, federation=federation, defenses=[{"chain": chain}])
    declared = noise(run.cells[0].config, 8)
    assert (declared.single if declared else None) == reason


def test_bits_are_those_of_the_packed_reply(make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL, defenses=[{"name": "sign"}])
    simulate(run)
    cell = run.cells[0]
    reply = cell.captures.load(own_captures(cell)[0]).received
    packed = Encoding(bits=1, zero=False, sparse=True)
    bits = sum(8 * packed.size(value) for value in reply.values())
    assert bits_sent(cell) >= bits * math.log(2)
    assert bits_sent(cell) < 1.2 * bits * math.log(2)
