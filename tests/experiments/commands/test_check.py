"""``fedsim check``: what holds a limit, and what proves nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from experiments.stages.search_errors import SEARCHES
from fedsim.records import ScoreRow
from fedsim.store.rows import read_rows, write_rows
from tests.apps.cases import IMAGES, Make
from tests.experiments.conftest import Said


def test_a_gate_compares_bounds_and_means(finished: Path, copied: Path, said: Said) -> None:
    code, out, _ = said("check", finished, "--max", "rouge1=0.3")
    held = "embedding_rows under no defense: rouge1"
    assert (code, out) == (1, f"{held} is at most 1 at 95 %, above 0.3\n")
    assert said("check", finished, "--max", "rouge1=1")[0] == 0
    # One client of three at 1, two at 0: the mean is a third, and other clients may do worse.
    path = copied / "scores.parquet"
    rows = [
        replace(row, value=float(row.client == 0))
        if (row.attack, row.metric, row.control) == ("embedding_rows", "rouge1", "none")
        else row
        for row in read_rows(path, ScoreRow)
    ]
    write_rows(path, ScoreRow, rows)
    for how, passes in (("mean", True), ("bound", False)):
        code, out, _ = said("check", copied, "--max", "rouge1=0.4", "--compare", how)
        assert (code, out.startswith("passed: 1 limit holds")) == (0 if passes else 1, passes)
    # Three clients with other scores have no bound, and what has no bound does not pass.
    scattered = [
        replace(row, value=0.1 + row.client / 100) if row.metric == "rouge1" else row
        for row in rows
    ]
    write_rows(path, ScoreRow, scattered)
    code, out, _ = said("check", copied, "--max", "rouge1=0.4")
    assert (code, "pass --compare mean" in out) == (1, True)
    assert said("check", copied, "--max", "rouge1=0.4", "--compare", "mean")[0] == 0


def test_a_gate_counts_what_came_back_verbatim(finished: Path, copied: Path, said: Said) -> None:
    error = said("check", finished, "--max-verbatim", "0", "--defense", "dp_sgd")[2]
    assert error.endswith("nothing was attacked under it. The run has none (no defense).\n")
    code, out, _ = said("check", finished, "--max-verbatim", "0")
    assert (code, out) == (1, "under no defense: 3 examples came back verbatim, above 0\n")
    assert said("check", finished, "--max-verbatim", "3")[0] == 0
    # ROUGE says 0, as it did of texts in other scripts; exactness and certificates count.
    path = copied / "scores.parquet"
    original = read_rows(path, ScoreRow)
    for metric, value, certified in (("exact_match", 1.0, False), ("exact_match", 0.0, True)):
        rows = [
            replace(
                row,
                value=value if row.metric == metric and row.client == 0 else 0.0,
                certified=certified if row.client == 0 else False,
            )
            if (row.attack, row.control) == ("embedding_rows", "none")
            else row
            for row in original
        ]
        write_rows(path, ScoreRow, rows)
        code, out, _ = said("check", copied, "--max-verbatim", "0", "--max", "rougeL=0.99")
        how = "verbatim or certified" if certified else "verbatim"
        assert code == 1
        assert out.endswith(f"under no defense: 1 example came back {how}, above 0\n")


def test_a_gate_asks_for_the_verdict(finished: Path, said: Said) -> None:
    code, out, _ = said("check", finished, "--smallest", "rouge=.05")
    assert code == 1
    assert out.startswith("under no defense: leaks (verbatim)")
    assert out.endswith("(asked: no leak above 0.05 ROUGE-L)\n")


@pytest.mark.slow
def test_a_verdict_is_by_the_smallest_effect(make_run: Make, said: Said) -> None:
    run = make_run(
        IMAGES,
        federation={"clients": 8, "rounds": 1, "client_rows": 1},
        defenses=[{"name": "none"}, {"name": "gaussian_noise", "std": 0.01}],
        attacks=[{"name": "inverting", "steps": 1, "adaptive": True}, {"name": "prior_only"}],
    )
    execute(run, STAGES[:3], quiet=True)
    code, out, _ = said("check", run.root, "--smallest", "psnr=1")
    assert code == 1
    assert "ended too early" in out  # the search of one step
    (run.root / SEARCHES).unlink()
    # Undefended images come back; under noise the attack leads by .7 dB over the blind guess.
    path = run.root / "scores.parquet"
    rows = [row for row in read_rows(path, ScoreRow) if row.metric == "psnr"]

    def changed(row: ScoreRow) -> ScoreRow:
        own = row.attack == "inverting"
        lead = {"none": 0.7}.get(row.control, -0.2) if own else 0.0
        found = 40.0 if own and row.defense == row.control == "none" else 12 + lead
        scatter = 0.01 * (row.client * (1 + 2 * own + 2 * (row.control != "none")) % 8)
        return replace(row, value=found + scatter)

    write_rows(path, ScoreRow, [changed(row) for row in rows])
    code, out, _ = said("check", run.root, "--smallest", "psnr=1")
    assert (code, out) == (0, "passed: 1 limit holds\n")
    code, out, _ = said("check", run.root, "--smallest", "psnr=.5")
    where = "under Gaussian noise (std=0.01)"
    assert code == 1
    assert out.startswith(f"{where}: leaks (better than guessing)")
    # Undefended victims are held to it by name, and untested ones never pass.
    assert said("check", run.root, "--smallest", "psnr=1", "--defense", "none")[0] == 1
    unscored = [replace(row, value=None, status="skipped") for row in rows]
    write_rows(path, ScoreRow, unscored)
    assert said("check", run.root, "--smallest", "psnr=1")[0] == 1


@pytest.mark.slow
def test_what_was_not_tested_does_not_pass(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    original = read_rows(path, ScoreRow)
    unscored = [row for row in original if row.metric not in ("rouge1", "exact_match", "mse")]
    failed = [replace(row, status="failed") for row in original]
    nobody = [row for row in original if row.attack == "prior_only"]
    refused = [
        row if row.attack == "prior_only" else replace(row, status="skipped", value=None)
        for row in original
    ]
    scoreless = "under no defense: no attack has a score of rouge1"
    for rows, lines in (
        (unscored, [scoreless]),
        (failed, ["under no defense: 3 jobs failed"]),
        (nobody, ["under no defense: no attack was run", scoreless]),
        (refused, ["under no defense: 3 skipped", scoreless]),
    ):
        write_rows(path, ScoreRow, rows)
        code, out, _ = said("check", copied, "--max", "rouge1=1", "--max-verbatim", "99")
        assert (code, out.splitlines()) == (1, lines)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("status", "why"), [("failed", "failed"), ("timeout", "unfinished: the clock ended them")]
)
def test_blank_guesses_of_jobs_that_did_not_end_hold_no_limit(
    status: str, why: str, copied: Path, said: Said
) -> None:
    path = copied / "scores.parquet"
    rows = [
        replace(row, status=status, value=0.0)
        if row.attack == "embedding_rows" and row.client > 0
        else row
        for row in read_rows(path, ScoreRow)
    ]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("check", copied, "--max", "rouge1=1")
    assert code == 1
    assert out == f"under no defense: 2 jobs {why}\n"


def test_an_attack_that_refused_most_victims_has_tested_nothing(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    rows = [
        replace(row, status="skipped", value=None)
        if row.attack == "embedding_rows" and row.client > 0
        else row
        for row in read_rows(path, ScoreRow)
    ]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("check", copied, "--max", "rouge1=1")
    assert (code, out) == (1, "under no defense: every attack refused most victims\n")


@pytest.mark.slow
def test_many_examples_of_one_client_hold_no_limit(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    rows = [
        replace(row, client=0, example=row.client, value=0.1 + row.client / 100)
        for row in read_rows(path, ScoreRow)
    ]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("check", copied, "--max", "rouge1=0.9")
    assert (code, "pass --compare mean" in out) == (1, True)
    assert "rouge1" not in said("check", copied, "--max", "rouge1=0.9", "--compare", "mean")[1]


@pytest.mark.slow
def test_a_run_without_the_main_metric_says_so(copied: Path, said: Said) -> None:
    rows = [r for r in read_rows(copied / "scores.parquet", ScoreRow) if r.metric != "rougeL"]
    write_rows(copied / "scores.parquet", ScoreRow, rows)
    last = said("report", copied)[1].splitlines()[-1]
    assert last.split() == ["no", "defense", "rougeL", "is", "not", "in", "metrics"]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ((), "Pass --max"),
        (("--max", "rouge1"), "expected name=number"),
        (("--max", "rogue1=1"), "Did you mean 'rouge1'?"),
        (("--max", "rouge1=1", "--defense", "nonee"), "Did you mean 'none'?"),
        (("--smallest", "rougeL=.05"), "Did you mean 'rouge'?"),
        (("--smallest", "rouge=2"), "less than 1"),
        (("--max", "mse=.1"), "Write --min."),
        (("--min", "psnr=20"), "Write --max."),
        (("--max", "psnr=nan"), "expected name=number"),
        (("--max", "rougeL=30"), "between 0 and 1"),
    ],
)
def test_a_wrong_check_names_the_fix(
    wrong: tuple[str, ...], fix: str, finished: Path, said: Said
) -> None:
    code, _, error = said("check", finished, *wrong)
    assert code == 2
    assert fix in error


@pytest.mark.slow
def test_nothing_measured_is_no_pass(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    rows = [replace(row, value=None) for row in read_rows(path, ScoreRow)]
    write_rows(path, ScoreRow, rows)
    assert said("check", copied, "--max", "rouge1=1")[0] == 1
    rows = [replace(row, status="interrupted") for row in rows]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("check", copied, "--max", "rouge1=1")
    assert (code, "under no defense" in out) == (1, True)
    path.write_bytes(path.read_bytes()[:1000])
    assert f"Run fedsim score {copied} again" in said("check", copied, "--max", "rouge1=1")[2]


@pytest.mark.parametrize("asked", [("--max", "rouge1=1"), ("--max-verbatim", "0")])
def test_a_run_without_an_attack_is_no_pass(
    copied: Path, said: Said, asked: tuple[str, ...]
) -> None:
    write_rows(copied / "scores.parquet", ScoreRow, [])
    code, out, _ = said("check", copied, *asked)
    assert (code, "no attack was run" in out) == (1, True)
