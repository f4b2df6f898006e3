"""The sentences that stand on one page beside the verdicts on rows."""

import pytest

from experiments.analysis.summary import summarise
from experiments.bounds.audit import AuditRow
from experiments.report.beyond import beyond
from experiments.report.run_results import RunResults
from experiments.report.tables import Number
from fedsim.cell import CandidatesConfig, CaptureConfig, CellConfig, TaskConfig
from fedsim.federation import FederationConfig
from fedsim.records import ScoreRow
from fedsim.server_knows import ServerKnows
from tests.experiments.analysis.membership_rows import row
from tests.experiments.report.cases import results_of

DP = {"name": "dp_sgd", "clip": 1.0, "epsilon": 4.0}
CELLS = {
    name: CellConfig(
        seed=0,
        task=TaskConfig(model="lenet", dataset="shapes"),
        auxiliary=None,
        federation=FederationConfig(),
        capture=CaptureConfig(),
        candidates=CandidatesConfig(fresh=100),
        server_knows=ServerKnows(),
        defense=defense,
    )
    for name, defense in {"bare": (), "private": (DP,)}.items()
}
HIDDEN = '[{"clip":1.0,"epsilon":4.0,"name":"dp_sgd"}]'


def members(cell: str, value: float, **changes: object) -> list[ScoreRow]:
    changes = {"cell": cell, **changes}
    if cell == "private":
        changes |= {"defense": "dp_sgd", "defense_options": HIDDEN}
    return [row(value + 0.02 * (client % 2), client, **changes) for client in range(6)]


@pytest.fixture
def results() -> RunResults:
    rows = [
        *members("bare", 0.97),
        *members("bare", 0.9, metric="membership_tpr_1"),
        *members("bare", 0.49, control="fresh_row"),
        *members("private", 0.49),
    ]
    words = {"attack": "properties", "attack_options": '{"of":"words"}'}
    shares = {"word_precision": 0.9, "word_recall": 0.4, "word_calibration": 0.03}
    said = [member for k, v in shares.items() for member in members("bare", v, metric=k, **words)]
    off = {"attack": "properties", "attack_options": '{"of":"classes"}'}
    said += [
        *members("private", 0.1, metric="class_distance", **off),
        *members("private", 0.4, metric="class_distance", control="other_client", **off),
    ]
    audits = [
        AuditRow(
            run="r",
            cell="private",
            defense="dp_sgd",
            defense_options=HIDDEN,
            unit="example",
            round=number,
            canaries=500,
            epsilon=2.0 * number,
            lower=0.5 * number,
            any_mechanism=0.1,
            shift=1.0,
        )
        for number in (1, 2)
    ]
    return results_of(CELLS, members=rows, properties=said, audits=audits)


def test_a_sentence_for_each_question(results: RunResults) -> None:
    (section,) = summarise([], [], CELLS).sections
    bare, private = beyond(section, results)
    assert (bare.defense, private.defense) == ("none", "DP-SGD (clip=1, ε=4)")
    assert private.epsilon == Number(4.0, "", 1.0, 4.0)
    assert bare.members is not None
    assert bare.members.value == pytest.approx(0.98)
    assert dict(bare.sentences) == {
        "Words": "91 % of the words named at even odds or better are held, and 41 % of those held "
        "are named; their probabilities are off by 0.04.",
        "Members": "told from fresh rows: AUC 0.98 [0.97, 0.99] by membership, 91 % at a false "
        "positive rate of 1 %, 6 members of 6 clients; fresh rows in their place 0.50 "
        "[0.49, 0.51].",
        "What would change it": "DP-SGD (clip=1, ε=4) left no member told here.",
    }
    assert dict(private.sentences) == {
        "Members": "not shown to be told from fresh rows: AUC 0.50 [0.49, 0.51] by membership, "
        "6 members of 6 clients.",
        "Classes": "class shares are off by 0.11 [0.10, 0.12] in all (told from another client: "
        "0.41).",
        "Epsilon": "after round 1 at least 0.500 and at most 2.00; after round 2 at least 1.00 and "
        "at most 4.00, by 500 canaries at 95 %.",
        "What would change it": "a stronger attack, or more than 6 members, may still tell them. "
        "More canaries would raise the lower bound on epsilon.",
    }


@pytest.mark.parametrize(
    "rows",
    [
        members("private", 0.5, status="failed"),
        members("private", 0.5, status="timeout"),
        [*members("private", 0.5), *members("private", 0.3, metric="membership_tpr_1")],
    ],
)
def test_no_member_is_called_hidden_where_a_job_failed_or_a_rate_tells(
    rows: list[ScoreRow],
) -> None:
    results = results_of(CELLS, members=[*members("bare", 0.97), *rows])
    (section,) = summarise([], [], CELLS).sections
    bare, private = (dict(known.sentences) for known in beyond(section, results))
    assert bare["What would change it"].startswith("no defense is shown to hide")
    failed = {row.status for row in rows} != {"done"}
    assert ("6 of jobs that failed or were cut short" in private["Members"]) == failed


def test_nothing_is_said_without_such_rows() -> None:
    (section,) = summarise([], [], CELLS).sections
    assert beyond(section, results_of(CELLS)) == []
