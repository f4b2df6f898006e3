"""The sentences that stand on one page beside the verdicts on rows."""

import re

import pytest

from experiments.bounds.audit import AuditRow
from experiments.report.beyond import beyond
from experiments.report.run_results import RunResults
from experiments.report.tables import Number
from experiments.wording.epsilons import Epsilons
from fedsim.config.cell import CandidatesConfig, CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.records import ScoreRow
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
            accounted=Epsilons(
                epsilon=2.0 * number, add_or_remove=2.0 * number, replace=3.75 * number
            ),
            lower=0.5 * number,
            any_mechanism=0.1,
            shift=1.0,
        )
        for number in (1, 2)
    ]
    return results_of(CELLS, members=rows, audits=audits)


def test_a_sentence_for_each_question(results: RunResults) -> None:
    bare, private = beyond(results)
    assert (bare.defense, private.defense) == ("none", "DP-SGD (clip=1, ε=4)")
    assert private.accounted == "4 (add or remove one) and 7.5 (replace one)"
    assert private.audited == Number(1.0)
    assert bare.members is not None
    assert bare.members.value == pytest.approx(0.98)
    ((topic, said),) = bare.sentences
    assert (topic, said.reason) == ("Members", "inferred.members")
    members = said.facts
    assert str(members["auc"]) == "0.98 [0.97, 0.99]"
    assert (members["count"], members["clients"]) == (6, 6)
    assert "91 %" in str(members["rate"])
    assert "0.50 [0.49, 0.51]" in str(members["null"])
    assert [said.reason.removeprefix("inferred.") for _, said in private.sentences] == [
        *("no_members", "epsilon", "more_members", "more_canaries"),
    ]
    spent = str(private.sentences[1][1].facts["rounds"])
    assert re.findall(r"[\d.]+", spent) == ["1", "0.500", "2", "3.75", "2", "1.00", "4", "7.5"]


@pytest.mark.parametrize("status", ["failed", "timeout", "done"])
def test_jobs_that_did_not_end_are_told_beside_the_members(status: str) -> None:
    rows = [*members("bare", 0.97), *members("private", 0.5, status=status)]
    _, private = beyond(results_of(CELLS, members=rows))
    said = dict(private.sentences)["Members"]
    assert ("6 of jobs" in str(said.facts["cut"])) == (status != "done")


def test_nothing_is_said_without_such_rows() -> None:
    assert beyond(results_of(CELLS)) == []
