"""What a guess counts for at a strength."""

from types import SimpleNamespace
from typing import Any

import pytest

from attacks.span.span import Span
from experiments.decision import calibrate
from experiments.decision.answer import ReachedTarget
from experiments.decision.search import Errors, Score, _bounds, decide
from experiments.decision.sequence import lower, upper
from experiments.decision.targets import Target, clients_needed
from experiments.decision.trial import CellTrial, Guessed, _came_back, _score
from experiments.decision.wording import blind_floor
from experiments.plan.entries import Entry
from fedsim.federation import FederationConfig
from fedsim.records import AttackKey, ScoreRow
from tests.experiments.analysis.cases import cell, row

VERBATIM = Target("verbatim", 0.0)


def guessed(exact: float, *, certified: bool = False) -> Guessed:
    main = row(metric="rougeL", unit="1", value=exact)
    return {
        "rougeL": main,
        "exact_match": row(metric="exact_match", unit="1", value=exact, certified=certified),
    }


@pytest.mark.parametrize(
    ("exact", "certified", "blind", "guessable", "counts", "doubtful"),
    [
        (1.0, False, 0.0, False, 1.0, True),
        (1.0, False, 0.0, True, 0.0, True),  # counts for nothing, and keeps the strength open
        (1.0, True, 0.0, True, 1.0, False),
        (1.0, False, 1.0, True, 0.0, False),
        (0.0, False, 0.0, True, 0.0, False),
    ],
)
def test_exact_returns(
    exact: float, certified: bool, blind: float, guessable: bool, counts: float, doubtful: bool
) -> None:
    rows, nothing = guessed(exact, certified=certified), guessed(blind)
    assert _score(VERBATIM, rows, nothing, guessable=guessable) == counts
    assert _came_back(rows, nothing) == doubtful


@pytest.mark.parametrize(
    ("status", "word"),
    [("failed", "failed"), ("timeout", "unfinished"), ("exhausted", "exhausted")],
)
def test_no_strength_holds_where_a_search_was_cut_short(status: str, word: str) -> None:
    span: Any = SimpleNamespace(label="span", key=SimpleNamespace(attack="span"))
    scorer: Any = SimpleNamespace(attack_rows=lambda *_: [row(status=status, value=0.0)])
    trial = CellTrial(cells=(), team=SimpleNamespace(), targets=())  # type: ignore[arg-type]
    trial._guessed(scorer, span, SimpleNamespace())  # type: ignore[arg-type]
    assert trial.faults() == f"jobs of span {word}"


@pytest.mark.parametrize(
    ("working", "fault"),
    [
        ((), "no attack that is adapted to the defense is shown to work without one"),
        (("span",), "no attack that is adapted to the defense is shown to work without one"),
        (("dlg",), ""),
        (("oblivious",), "no attack that is adapted to the defense is shown to work without one"),
    ],
)
def test_no_strength_holds_against_an_adapted_attack_that_works_nowhere(
    working: tuple[str, ...], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        "span": AttackKey("span", "{}", adaptive=False),
        "dlg": AttackKey("dlg", '{"adaptive":true}', adaptive=True),
        "oblivious": AttackKey("dlg", '{"adaptive":false}', adaptive=False),
    }
    defense = ({"name": "clip", "norm": 1.0},)
    cell: Any = SimpleNamespace(config=SimpleNamespace(defense=defense))
    trial = CellTrial((cell,), SimpleNamespace(), (VERBATIM,), working)  # type: ignore[arg-type]
    monkeypatch.setattr(trial, "_searched", tuple)
    trial.__dict__["_entries"] = [
        Entry(label, {"name": key.attack}, key.attack_options, key.adaptive)
        for label, key in keys.items()
    ]
    trial._ran["dlg"] = [True] * 4
    assert trial.faults() == fault
    assert trial.controls == ["dlg"]


@pytest.mark.parametrize(
    ("defense", "working", "fault"),
    [
        ({"name": "gaussian_noise", "std": 0.1}, ("span",), ""),
        (
            {"name": "gaussian_noise", "std": 0.1},
            (),
            "no attack that is adapted to the defense is shown to work without one",
        ),
        ({"name": "ghost"}, ("span",), "no attack that is adapted to the defense was run"),
    ],
)
def test_an_attack_that_measures_the_noise_need_not_be_told_of_it(
    defense: dict[str, Any], working: tuple[str, ...], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell: Any = SimpleNamespace(config=SimpleNamespace(defense=(defense,)))
    trial = CellTrial((cell,), SimpleNamespace(), (VERBATIM,), working)  # type: ignore[arg-type]
    monkeypatch.setattr(trial, "_searched", tuple)
    trial.__dict__["_entries"] = [
        Entry("span", {"name": "span"}, "{}", adaptive=False, estimates=Span.estimates)
    ]
    trial._ran["span"] = [True] * 4
    assert trial.faults() == fault
    assert trial.controls == ["span"]


def test_what_so_few_clients_cannot_show_is_said_with_their_number() -> None:
    target, error = Target("rouge1", 0.45), 0.01
    needed = clients_needed(target, 0.23, error)
    assert upper([0.23] * needed, error) < target.passes <= upper([0.23] * (needed - 1), error)
    said = blind_floor(target, 0.23, 10, error)
    assert "reaches 0.23 of rouge1" in said
    assert f"takes about {needed} clients to show, and there are 10" in said
    assert blind_floor(target, 0.23, needed, error) == ""
    assert blind_floor(target, 0.45, 500, error).endswith("no defense can hold rouge1=0.45.")


def test_a_search_that_runs_out_of_clients_says_so() -> None:
    target, errors = Target("rouge1", 0.45), Errors(0.01, 0.01)
    search: Any = SimpleNamespace(targets=(target,), errors=errors)
    trial: Any = SimpleNamespace(
        attack=lambda attacks, clients: {
            attack: {"rouge1": [Score(0.24, 0.24) for _ in clients]} for attack in attacks
        },
        faults=lambda: "",
    )

    def reason(clients: int) -> str:
        decision = decide(trial, ["span"], (target,), range(clients), errors, 4)
        return calibrate.Calibration._ran_out(search, decision)

    needed = clients_needed(target, 0.24, 0.01)
    assert reason(8) == f"all 8 clients were attacked, and at this mean it takes about {needed}"
    assert reason(needed) == ""


def test_a_refused_client_supports_no_upper_bound() -> None:
    quiet, leaking = Score(0.1, 0.1), Score(0.9, 0.9)
    errors = Errors(0.01, 0.01)
    whole = [quiet] * 20
    assert _bounds(whole, errors).high == upper([0.1] * 20, 0.01)
    half = [*[Score(0.1, None)] * 10, *[leaking] * 10]
    assert _bounds(half, errors).high == upper([0.9] * 10, 0.01)
    few = [*[Score(0.1, None)] * 60, *[leaking] * 10]
    assert _bounds(few, errors).high == pytest.approx(lower([0.9] * 10, 0.01))
    assert _bounds(few, errors).low == lower([0.1] * 60 + [0.9] * 10, 0.01)


def test_a_row_of_two_clients_counts_once_and_each_hit_of_it_does() -> None:
    def attacked(target: Target, first: float, second: float) -> list[list[float]]:
        values = {0: first, 1: second}
        key = [SimpleNamespace(client=client) for client in values]
        scorer: Any = SimpleNamespace(
            victims=SimpleNamespace(keys=key),
            attack_rows=lambda _, key: [
                row(metric=metric, unit="1", value=values[key.client], row=7)
                for metric in ("rougeL", "exact_match")
            ],
        )
        entry: Any = SimpleNamespace(label="span", key=SimpleNamespace(attack="span"))
        trial = CellTrial((), SimpleNamespace(), (target,))  # type: ignore[arg-type]
        trial.__dict__ |= {"_scorers": [scorer], "_entries": [entry]}
        by_client = (trial._of_client(["span"], client)["span"][target.name] for client in values)
        return [[score.value for score in scores] for scores in by_client]

    assert attacked(Target("rougeL", 0.3), 0.2, 0.9) == [[0.2], []]
    assert attacked(VERBATIM, 0.0, 0.0) == [[0.0], []]
    assert attacked(VERBATIM, 0.0, 1.0) == [[0.0], [1.0]]


def test_what_is_reached_beyond_a_bound_is_a_contradiction() -> None:
    known: dict[str, Any] = {
        "target": "rougeL",
        "attack": "span",
        "clients": 8,
        "mean": 0.3,
        "blind": 0.1,
    }
    above = ReachedTarget(**known, low=0.25, high=0.4, bound=0.15)
    assert above.contradictory
    assert not above.model_copy(update={"bound": 0.3}).contradictory
    assert not above.model_copy(update={"bound": None}).contradictory
    worse = {**known, "target": "mse", "low": 0.02, "high": 0.01}  # the smaller, the worse
    assert ReachedTarget(**worse, bound=0.03).contradictory
    assert not ReachedTarget(**worse, bound=0.01).contradictory


@pytest.mark.parametrize(("rounds", "times"), [([1], 1.0), ([1, 2], 50.0)])
def test_the_bound_on_any_attack_counts_all_captured_rounds(
    rounds: list[int], times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty rounds in each of which every row is drawn."""
    config = cell(0).model_copy(
        update={
            "federation": FederationConfig(batch_size=4, rounds=50, clients=8),
            "defense": ({"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 3.0},),
        }
    )
    keys = [SimpleNamespace(round=number) for number in rounds]
    monkeypatch.setattr(calibrate, "Victims", lambda _: SimpleNamespace(keys=keys))
    monkeypatch.setattr(calibrate, "owned", lambda _: (4,) * 8)
    captured: Any = SimpleNamespace(config=config)
    assert calibrate._nats([captured]) == pytest.approx(times / 18)  # 1 / (2 z^2) a reply


@pytest.mark.parametrize("by_chance", [False, True])
def test_an_exact_text_proves_no_leak_where_others_were_guessed_by_chance(by_chance: bool) -> None:
    exact = [row(metric=metric, unit="1", value=1.0) for metric in ("rougeL", "exact_match")]
    attacked: list[set[int]] = []

    def rows_for_others(_: Entry, clients: set[int]) -> list[ScoreRow]:
        attacked.append({*clients})
        return [row(metric="exact_match", value=float(by_chance and 1 in clients))]

    scorer: Any = SimpleNamespace(
        victims=SimpleNamespace(keys=[SimpleNamespace(client=client) for client in (0, 1)]),
        attack_rows=lambda *_: exact,
        rows_for_others=rows_for_others,
    )
    entry: Any = SimpleNamespace(label="span", key=SimpleNamespace(attack="span"))
    team: Any = SimpleNamespace(drain=lambda: None)
    trial = CellTrial((), team, (VERBATIM,))
    trial.__dict__ |= {"_scorers": [scorer], "_entries": [entry]}
    hits = [trial.attack(["span"], [client])["span"]["verbatim"] for client in (0, 1)]
    assert [score[0].value for score in hits] == [1.0, 0.0 if by_chance else 1.0]
    assert attacked == [{0}, {0, 1}]  # those so far, so that a search that goes on decides alike
    assert trial._doubtful == by_chance


@pytest.mark.parametrize("target", [Target("rouge1", 0.4), VERBATIM])
@pytest.mark.parametrize(("value", "below"), [(0.1, True), (0.18, False), (0.3, False)])
def test_an_attack_below_the_blind_guess_holds_nothing(
    value: float, below: bool, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:

    def rows(entry: Entry, key: Any) -> list[ScoreRow]:
        del key
        score = 0.2 if entry.label == "prior_only" else value
        return [row(metric=m, unit="1", value=score) for m in ("rougeL", "rouge1")] + [
            row(metric="exact_match", unit="1", value=0.0)
        ]

    scorer: Any = SimpleNamespace(
        victims=SimpleNamespace(keys=[SimpleNamespace(client=client) for client in range(4)]),
        attack_rows=rows,
        rows_for_others=lambda *_: [],
    )
    defense = ({"name": "gaussian_noise", "std": 0.1},)
    cell: Any = SimpleNamespace(config=SimpleNamespace(defense=defense))
    trial = CellTrial((cell,), SimpleNamespace(drain=lambda: None), (target,), ("span",))  # type: ignore[arg-type]
    trial.team.submit_some = lambda *_: None  # type: ignore[method-assign]
    trial.__dict__ |= {
        "_scorers": [scorer],
        "_entries": [
            Entry("span", {"name": "span"}, "{}", adaptive=False, estimates=Span.estimates),
            Entry("prior_only", {"name": "prior_only"}, "{}", adaptive=False),
        ],
    }
    monkeypatch.setattr(trial, "_searched", tuple)
    trial.attack(["span"], range(4))
    assert ("less than a blind guess" in trial.faults()) == below
