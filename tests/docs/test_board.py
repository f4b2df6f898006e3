"""The board says what the grades say."""

from docs import tables
from docs.board import NAME, board
from docs.measured import read
from experiments.extras.arena.records import Grade, GradedNumber
from experiments.plan.config import shipped
from experiments.plan.folder import Run


def graded(name: str, mean: float, exact: int | None = 3) -> Grade:
    score = GradedNumber(mean=mean, low=mean - 0.1, high=mean + 0.1)
    return Grade(
        track="arena-gpt2",
        name=name,
        metric="rougeL",
        n=12,
        clients=6,
        word="",
        exact=exact,
        score=score,
        nulls={"prior_only": score},
        lead={"prior_only": GradedNumber(mean=0.25, low=0.2, high=0.3)},
        cpu_seconds=90.0,
        measured=exact is not None,
        code="c",
        bundle="b",
        submission="s",
        grader="1",
    )


def test_a_board_has_a_line_for_each_grade_the_best_first(run: Run) -> None:
    result = board([graded("worse", 0.4, None), graded("better", 0.8)], run.root)
    lines = [line for line in tables.table(result).splitlines() if "arena-gpt2" in line]
    assert lines[0].startswith("| arena-gpt2 | ROUGE-L | better | 0.80 [0.70, 0.90] | 3 of 12 |")
    assert "0.25 [0.20, 0.30]" in lines[0]
    assert "1.5 |" in lines[0]
    assert "1.5 (stated)" in lines[1]
    assert "secret seeds" in tables.source(result, NAME)
    assert result.cpu_seconds == 180


def test_the_board_has_each_track_under_two_attacks() -> None:
    board = read(NAME)
    tracks = {name for name in shipped() if name.startswith("arena-")}
    lines = {(row.setting["track"], row.setting["attack"]) for row in board.rows}
    for track in tracks:
        assert sum(one == track for one, _ in lines) >= 2, track
    assert sum("public code" in attack for _, attack in lines) == 3
