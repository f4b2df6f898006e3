"""What a report says over rounds: the union of recovered rows, and limits of its cells."""

from dataclasses import replace

from attacks.feasibility import Feasibility
from experiments.bounds.records import LimitsRecord, RankLimit
from experiments.report.result_tables import appendix, coverage_table
from experiments.report.tables import Number
from experiments.stages.coverage import coverage
from fedsim.records import ScoreRow
from tests.experiments.analysis.cases import cell, only_section, row
from tests.experiments.report.cases import results_of

EXACT, WRONG = 1e-9, 0.02


def guess(client: int, round_: int, number: int, value: float, certified: bool) -> list[ScoreRow]:
    own = {"client": client, "round": round_, "row": number, "certified": certified}
    return [
        row(**own, metric="mse", unit="squared pixel", value=value),
        row(**own, metric="psnr", value=10.0 * round_),
    ]


# Client 0 uses row 7 twice and is recovered once, uncertified; client 1 sits round 2 out.
ROWS = [
    *guess(0, 1, 7, WRONG, certified=False),
    *guess(1, 1, 20, EXACT, certified=True),
    *guess(0, 2, 7, EXACT, certified=False),
    *guess(0, 5, 8, WRONG, certified=True),
    *guess(1, 5, 21, EXACT, certified=True),
]


def test_the_union_is_over_clients_and_remembers_who_sits_out() -> None:
    section, covered = only_section(ROWS), coverage(ROWS)
    table = coverage_table(section, covered)
    assert table.cells[0] == ["", "none", "DLG", 1, 2, 1, Number(0.5, "1"), 1, 0]
    assert table.cells[1] == ["", "none", "DLG", 2, 2, 2, Number(1.0, "1"), 1, 0]
    assert table.cells[2] == ["", "none", "DLG", 5, 4, 3, Number(0.75, "1"), 2, 1]
    assert coverage_table(section, reversed(covered)) == table
    never = [replace(r, value=WRONG) for r in ROWS if r.metric == "mse"]
    assert coverage_table(section, coverage(never)).rows == ()


def test_limits_stand_in_the_chapter_of_their_cells() -> None:
    who = {"run": "r", "defense": "sign", "defense_options": "{}"}
    feasibility = Feasibility("red", "tokens", (9, 4, 5), 3, "3 of 3 replies hold more")
    ranks = tuple(
        RankLimit(**who, cell=name, attack="span", feasibility=feasibility)
        for name in ("c0", "gone")
    )
    limits = LimitsRecord(ranks=ranks, successes=(), budgets=())
    results = results_of({"c0": cell(0), "c1": cell(1), "gone": cell(2)}, limits=limits)
    # c1 differs in its seed alone, and limits are those of the first one.
    (table,) = appendix(results.of(["c0", "c1"])).values()
    assert table.name == "limits-ranks"
    assert table.cells == [["sign", "span", "red", "tokens", 5, 9, 3, "3 of 3 replies hold more"]]
    assert appendix(results.of(["c1"])) == {}
