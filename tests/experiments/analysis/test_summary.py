import json
import math
from dataclasses import replace
from typing import Any

import pytest

from experiments.analysis.findings import RoundUtility, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.summary import summarise
from experiments.report.curves import curves, running_mean, smoothed, window
from experiments.report.figures import INK, strokes
from experiments.report.naming import attack_name
from experiments.report.page import outcomes
from experiments.report.result_tables import tables
from experiments.report.run_results import canonical
from experiments.report.tables import Number, Table, to_csv
from experiments.wording.threat import threat_model
from fedsim.config.cell import AuxiliaryConfig, CaptureConfig
from fedsim.config.federation import FederationConfig
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, ScoreRow
from tests.experiments.analysis.cases import cell, only_section, row, use


def table_of(section: TaskFindings, name: str) -> Table:
    return next(table for table in tables(section) if table.name == name)


def test_seeds_are_pooled_and_a_client_of_several_seeds_is_one() -> None:
    section = only_section(
        [
            row(value=10.0),
            row(value=20.0, client=1),
            row(value=60.0, cell="c1", seed=1),
        ]
    )
    (result,) = section.results
    found = result.leakage["psnr"]
    assert (found.n, found.clusters, found.mean, found.median, found.worst) == (3, 2, 30, 20, 60)
    assert result.setting == ""
    assert result.cells == ("c0", "c1")
    assert (section.victims, section.clients) == (3, 2)
    assert result.jobs == {
        "done": 3,
        "skipped": 0,
        "failed": 0,
        "timeout": 0,
        "exhausted": 0,
        "interrupted": 0,
    }


def test_no_mean_is_taken_over_survivors() -> None:
    def attack(client: int, value: float | None, **more: Any) -> ScoreRow:
        status = "skipped" if value is None else "done"
        return row(client=client, row=client, value=value, status=status, **more)

    blind = {"attack": PRIOR_ONLY, "attack_options": "{}"}
    priors = [attack(client, 12.0, **blind) for client in range(4)]
    # A refused victim counts with the prior's guess, a failed one as it was scored, as a blank.
    failed = replace(attack(3, 6.0), status="failed")
    tried = [attack(0, 30.0), attack(1, 20.0), attack(2, None), failed]
    section = only_section([*tried, *priors])
    result = next(one for one in section.results if one.attack == "dlg")
    assert (result.leakage["psnr"].n, result.leakage["psnr"].mean) == (4, (30 + 20 + 12 + 6) / 4)
    assert (result.rounds["psnr"][1].n, result.jobs["skipped"]) == (4, 1)
    verdict = section.evidence.verdicts[0]
    assert verdict.strongest is not None
    assert verdict.strongest.leakage.mean == result.leakage["psnr"].mean
    # One that refused all victims has reached nothing, and without the prior there is no guess.
    none = only_section([*(attack(client, None) for client in range(4)), *priors])
    assert next(one for one in none.results if one.attack == "dlg").leakage == {}
    (alone,) = only_section(tried).results
    assert alone.leakage["psnr"].n == 3


def test_an_example_that_is_attacked_twice_is_one_private_example() -> None:
    rows = [row(cell=cell, client=c, row=c) for cell in ("c0", "c2") for c in range(6)]
    section = only_section([*rows, row(cell="c0", client=0, row=0, round=7)])
    assert (section.victims, section.clients, section.fewest) == (6, 6, 6)
    few = only_section([*rows, *(row(cell="c1", seed=1, client=c, row=9 + c) for c in range(2))])
    assert (few.victims, few.clients, few.fewest) == (8, 6, 6)
    assert only_section(rows[:8]).fewest == 2


def test_swept_values_are_told_apart_and_in_the_order_of_their_numbers() -> None:
    section = only_section([row(cell="c2", value=1.0), row(value=2.0)])
    assert [(r.setting, r.leakage["psnr"].mean) for r in section.results] == [
        ("batch_size=1", 2.0),
        ("batch_size=4", 1.0),
    ]


def test_worst_is_the_most_leaked_also_where_less_is_more() -> None:
    errors = [0.5, 0.01, 0.3]
    section = only_section(
        [
            row(metric="mse", unit="squared pixel", value=value, client=i)
            for i, value in enumerate(errors)
        ]
    )
    assert section.results[0].leakage["mse"].worst == 0.01


def test_failed_jobs_count_in_the_mean_and_skipped_ones_are_counted_apart() -> None:
    section = only_section(
        [
            row(value=40.0),
            row(value=4.0, client=1, status="failed", reason="no convergence"),
            row(value=None, client=2, status="skipped", reason="no labels"),
        ]
    )
    (result,) = section.results
    assert result.leakage["psnr"].mean == 22.0
    assert result.jobs == {
        "done": 1,
        "skipped": 1,
        "failed": 1,
        "timeout": 0,
        "exhausted": 0,
        "interrupted": 0,
    }
    assert [line[4:] for line in table_of(section, "problems").cells] == [
        ["failed", 1, "no convergence"],
        ["skipped", 1, "no labels"],
    ]


def test_nulls_stand_beside_the_same_attack_in_the_same_place() -> None:
    section = only_section(
        [
            row(value=30.0),
            row(value=9.0, attack_options='{"steps":50}', control=OTHER_CLIENT),
            row(value=11.0, control=OTHER_CLIENT),
            row(value=12.0, attack=PRIOR_ONLY, attack_options="{}"),
            row(value=8.0, attack=PRIOR_ONLY, attack_options="{}", defense="sign"),
        ]
    )
    (first,) = (r for r in section.results if not r.is_null)
    other, prior = section.null(first, OTHER_CLIENT), section.null(first, PRIOR_ONLY)
    assert other is not None
    assert prior is not None
    assert (other.leakage["psnr"].mean, prior.leakage["psnr"].mean) == (11.0, 12.0)
    rows = table_of(section, "leakage").rows
    (beside,) = (line for line in rows if Number(30.0, "dB") in line.values())
    assert beside["prior only"] == Number(12.0, "dB")
    assert beside["other client"] == Number(11.0, "dB")


def test_namesakes_are_told_apart_by_the_options_that_differ() -> None:
    section = only_section(
        [
            row(attack_options='{"lr":1,"steps":300}'),
            row(attack_options='{"lr":1,"steps":50}', adaptive=True),
        ]
    )
    assert [attack_name(section, result) for result in section.results] == [
        "DLG (steps=50, adaptive)",
        "DLG (steps=300)",
    ]


def test_utility_is_the_mean_over_seeds_of_the_last_round() -> None:
    section = only_section(
        [row()],
        [
            use(round=10, value=0.9, bytes_up=10),
            use(round=10, value=0.7, bytes_up=30, cell="c1", seed=1),
            use(round=10, value=2.0, metric="loss", bytes_up=10),
            use(round=2, value=0.1),
        ],
    )
    end = section.at_end(section.results[0].place)
    assert end is not None
    assert (end.round, end.seeds, end.bytes_up) == (10, 2, 20)
    assert end.values == pytest.approx({"accuracy": 0.8, "loss": 2.0})
    assert [measured.round for measured in section.utility] == [2, 10]


def test_utility_at_the_end_is_the_mean_over_the_last_tenth_of_the_rounds() -> None:
    curve = [use(round=number, value=float(number)) for number in range(31)]
    section = only_section([row()], curve)
    end = section.at_end(section.results[0].place)
    assert end is not None
    assert (end.round, end.values["accuracy"]) == (30, 29.0)
    short = only_section([row()], curve[:12]).at_end(section.results[0].place)
    assert short is not None
    assert short.values["accuracy"] == 11.0


def test_a_diverged_model_is_strict_json() -> None:
    findings = summarise([row()], [use(value=float("nan"))], {"c0": cell()})
    data = json.loads(canonical(findings), parse_constant=pytest.fail)
    assert data["sections"][0]["utility"][0]["values"] == {"accuracy": "NaN"}
    assert "seconds" not in data["sections"][0]["results"][0]


def test_intervals_are_missing_where_there_is_one_example() -> None:
    section = only_section([row()])
    assert section.results[0].leakage["psnr"].low is None
    assert "10.0,,,10.0,10.0" in to_csv(table_of(section, "leakage"))


@pytest.mark.slow
def test_curves_need_two_rounds_and_hold_no_formula_of_the_data() -> None:
    rows = [row(round=n, client=c, value=10.0 + n + c) for n in (1, 2) for c in (0, 1)]
    hostile = [replace(r, attack="$x<&", control="none") for r in rows]
    assert curves(only_section(rows[:2]), "f") == []
    (figure,) = curves(only_section(hostile, [use(), use(round=2)]), "f")
    assert "$x&lt;&amp;" in figure.svg
    assert INK in figure.svg
    assert figure.png.startswith(b"\x89PNG")
    (again,) = curves(only_section(hostile, [use(), use(round=2)]), "f")
    assert (again.svg, again.png) == (figure.svg, figure.png)


@pytest.mark.slow
def test_one_legend_names_each_defense_once_and_tells_all_apart() -> None:
    stds = [1e-3, 1e-2, 1e-1]
    rows = [
        row(round=n, client=c, attack=attack, defense=name, defense_options=json.dumps(options))
        for attack in ("dlg", "inverting")
        for name, options in [
            ("none", []),
            *(("gaussian_noise", [{"name": "gaussian_noise", "std": std}]) for std in stds),
        ]
        for n in (1, 2)
        for c in (0, 1)
    ]
    section = only_section(rows, [use(round=n, defense_options="[]") for n in (0, 1)])
    (figure,) = curves(section, "f")
    for label in ("none", *(f"Gaussian noise (std={std})" for std in stds)):
        assert figure.svg.count(f">{label}</text>") == 1
    drawn = strokes(section.places)
    assert len({(value.colour, value.marker) for value in drawn.values()}) == len(drawn) == 4
    assert drawn[DefenseInSetting("", "none", "[]")].colour == INK


def test_utility_of_many_rounds_is_a_running_mean() -> None:
    assert [window(rounds) for rounds in (2, 20, 21, 41, 201)] == [1, 1, 3, 5, 21]
    assert running_mean([1.0, 2.0, 6.0, 4.0], 3) == [1.5, 3.0, 4.0, 5.0]
    gap = running_mean([1.0, math.nan, 3.0], 3)
    assert (gap[0], math.isnan(gap[1]), gap[2]) == (1.0, True, 3.0)


def test_smoothing_leaves_the_untrained_model_out() -> None:
    values = dict(enumerate((0.0, 1.0, 2.0, 6.0)))
    measured = [
        RoundUtility(
            setting="",
            defense="none",
            defense_options="[]",
            round=number,
            values={"accuracy": value},
            by_seed={},
            spent=None,
            bytes_up=0,
        )
        for number, value in values.items()
    ]
    assert smoothed(measured, "accuracy", 3) == [0.0, 1.5, 3.0, 4.0]
    assert smoothed(measured[1:], "accuracy", 3) == [1.5, 3.0, 4.0]


def test_reasons_that_differ_in_their_numbers_are_told_once() -> None:
    skipped = [
        row(client=c, value=None, status="skipped", reason=f"rank {380 + min(c, 2)} at width 384")
        for c in range(4)
    ]
    other = row(client=9, value=None, status="failed", reason="out of memory")
    (result,) = only_section([*skipped, other]).results
    assert outcomes(result) == [
        ("skipped", 4, "for example: rank 382 at width 384"),
        ("failed", 1, "out of memory"),
    ]


def test_the_card_says_what_was_granted_withheld_and_varied() -> None:
    card = threat_model(
        [cell(labels=True, defense=False), cell(seed=1, labels=False, defense=False)]
    )
    assert card.varied == ("which classes occur among the client's examples",)
    assert card.withheld == ("which defense the client runs, with its options",)
    assert len(card.granted) == 8  # a picture has no token count, and no rows are the attacker's
    assert dict(card.protocol)["seed"] == "0 or 1"
    assert dict(card.protocol)["protocol"] == "FedSGD: clients send gradients"
    assert card.defenses == ("none",)


def test_a_data_set_called_captures_is_simulated_as_any_other() -> None:
    config = cell()
    config = config.model_copy(
        update={"task": config.task.model_copy(update={"dataset": "captures"})}
    )
    assert {"realism", "batch size", "private rows"} <= dict(threat_model([config]).protocol).keys()
    seen = dict(threat_model([config], foreign=True).protocol)
    assert seen.keys() == {"protocol", "clients", "what comes back", "rounds"}


def test_the_card_tells_the_protocol() -> None:
    config = cell().model_copy(
        update={
            "federation": FederationConfig(
                protocol="fedavg",
                clients=10,
                participation=0.5,
                partition="dirichlet",
                local_steps=4,
                client_rows=8,
                optimizer="adam",
                learning_rate=0.001,
                train_mode=True,
            ),
            "auxiliary": AuxiliaryConfig(split="train[900:]"),
            "capture": CaptureConfig(rounds=(1, 3)),
            "defense": ({"name": "prune", "fraction": 0.9}, {"name": "sign"}),
        }
    )
    card = threat_model([config])
    assert card.defenses == ("pruning (fraction=0.9) + sign",)
    assert dict(card.protocol) == {
        "realism": "L1",
        "what comes back": "each client's own reply: there is no secure aggregation",
        "protocol": "FedAvg: clients send weights",
        "clients": "10, 50% of them in each round, rows dealt by Dirichlet(0.5)",
        "rounds": "1",
        "batch size": "1",
        "client mode": "train, which is eval of a model without dropout and batch statistics",
        "first weights": "random for a built-in model, else pretrained",
        "private rows": "shapes, train",
        "local training": "4 steps of 8 rows, adam of step size 0.001",
        "aggregation": "fedavg",
        "attacker's rows": "at most 1000 of shapes, train[900:]",
        "captured": "rounds 1, 3; clients all",
        "seed": "0",
    }
    task = config.task.model_copy(update={"model": "resnet20"})
    with_statistics = threat_model([config.model_copy(update={"task": task})])
    mode = dict(with_statistics.protocol)["client mode"]
    assert mode == "train (dropout and batch statistics on)"


@pytest.mark.parametrize(
    ("proved", "word"), [({"c0"}, "not decided"), ({"c0", "c1"}, "holds by bound")]
)
def test_a_bound_has_to_hold_in_every_seed(proved: set[str], word: str) -> None:
    scores = [
        row(defense="sign", attack=attack, cell=f"c{seed}", seed=seed, client=client, value=10.0)
        for seed in (0, 1)
        for client in range(6)
        for attack in ("dlg", PRIOR_ONLY)
    ]
    cells = {"c0": cell(0), "c1": cell(1)}
    findings = summarise(scores, [], cells, bounded=lambda name, *_: name in proved)
    (verdict,) = findings.sections[0].evidence.verdicts
    assert verdict.word == word
