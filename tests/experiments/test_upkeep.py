"""What commands say about finished runs, and what they say when stopped."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.shell_completion import ShellComplete

import fedsim
from experiments import cli
from experiments.analysis.findings import Findings
from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from experiments.report.headline import closing_table, headline
from experiments.stages.search_errors import SEARCHES
from fedsim.errors import StoreError
from fedsim.files import read_record
from fedsim.records import OTHER_CLIENT, ScoreRow
from fedsim.rows import read_rows, write_rows
from tests.apps.cases import IMAGES, TEXT, Make, files_of, simulate
from tests.apps.mistakes import BASE
from tests.experiments.conftest import Said


def test_a_run_is_listed_checked_and_loaded(finished: Path, said: Said) -> None:
    (row,) = headline(finished)
    assert row[:5] == ("no defense", "leaks (verbatim)", "embedding rows", "rougeL 1", "0")
    assert row.recovered == "3 of 3 texts"
    assert said("report", finished)[1].splitlines()[-1] == closing_table([row]).splitlines()[-1]
    assert json.loads(said("report", finished, "--json")[1])["answer"] == [row._asdict()]
    (listed,) = json.loads(said("ls", finished.parent, "--json")[1])
    assert listed["state"] == "reported"
    assert listed["megabytes"] > 0
    assert "reported" in said("ls", finished.parent)[1]
    assert said("ls", finished)[1] == said("ls", finished.parent)[1]
    frames = fedsim.load(finished)
    assert set(frames.scores.attack) == {"embedding_rows", "prior_only"}
    assert set(frames.utility["round"]) == {0, 1}


def test_a_run_is_as_far_as_its_files(make_run: Make, said: Said) -> None:
    run = make_run(TEXT, federation={"rounds": 1}, defenses=[{"name": "none"}, {"name": "sign"}])
    assert "planned" in said("ls", run.root)[1]
    simulate(run)  # which opens the ledger
    assert "simulated" in said("ls", run.root)[1]
    execute(run, ("attack",), quiet=True)
    assert "attacked" in said("ls", run.root)[1]


def test_the_table_of_a_run_is_the_reports(finished: Path, copied: Path) -> None:
    table = fedsim.load(finished).table()
    (section,) = read_record(finished / "summary.json", Findings).sections
    verdicts = section.evidence.verdicts
    assert len(table) == len(verdicts)
    assert table.leakage.tolist() == [
        verdict.strongest.leakage.mean for verdict in verdicts if verdict.strongest is not None
    ]
    assert r"\toprule" in table.to_latex()
    (copied / "report/tables/defenses.csv").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="Run fedsim report"):
        fedsim.load(copied).table()


def test_leakage_and_utility_are_drawn_by_round(finished: Path, make_run: Make) -> None:
    with pytest.raises(StoreError, match="two rounds or more"):
        fedsim.load(finished).plot_rounds()
    attacks = [{"name": "inverting", "steps": 2}]
    run = make_run(IMAGES, attacks=attacks, federation={"rounds": 2})
    execute(run, STAGES, quiet=True)
    frames = fedsim.load(run.root)
    leakage, utility = frames.plot_rounds().axes
    assert (leakage.get_ylabel(), utility.get_xlabel()) == ("PSNR (dB)", "round")
    scores = frames.scores[frames.scores.metric == "psnr"]
    means = scores.groupby("round").value.mean().tolist()
    assert list(leakage.lines[0].get_ydata()) == pytest.approx(means)
    with pytest.raises(StoreError, match="rouge1 was not measured"):
        frames.plot_rounds("rouge1")


def test_the_documented_means_are_those_of_the_report(finished: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/results.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    block = block.replace("runs/quickstart", str(finished)).replace("print(", "means = (")
    names: dict[str, Any] = {}
    exec(block, names)
    (section,) = read_record(finished / "summary.json", Findings).sections
    reported = {
        (result.defense, result.attack, metric): found.mean
        for result in section.results
        if not result.is_control
        for metric, found in result.leakage.items()
    }
    assert names["means"].dropna().to_dict() == pytest.approx(reported)
    assert len(reported) > 10
    controls = set(fedsim.load(finished, controls=True).scores.control)
    assert {"none", OTHER_CLIENT} <= controls
    assert set(fedsim.load(finished).scores.control) == {"none"}


def test_a_gate_compares_bounds_means_and_the_worst_client(
    finished: Path, copied: Path, said: Said
) -> None:
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
    for how, passes in (("mean", True), ("bound", False), ("client", False)):
        code, out, _ = said("check", copied, "--max", "rouge1=0.4", "--compare", how)
        assert (code, out.startswith("passed: 1 limit holds")) == (0 if passes else 1, passes)
    assert "of the worst client 1, above 0.4" in out
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
        assert (code, out) == (1, f"under no defense: 1 example came back {how}, above 0\n")


def test_a_gate_asks_for_the_verdict_with_its_smallest_effect(
    make_run: Make, finished: Path, said: Said
) -> None:
    code, out, _ = said("check", finished, "--smallest", "rouge=.05")
    assert code == 1
    assert out.startswith("under no defense: leaks (verbatim)")
    assert out.endswith("(asked: no leak above 0.05 ROUGE-L)\n")
    run = make_run(
        IMAGES,
        federation={"clients": 8, "rounds": 1, "client_rows": 1},
        defenses=[{"name": "none"}, {"name": "gaussian_noise", "std": 0.01}],
        attacks=[{"name": "inverting", "steps": 1, "adaptive": True}, {"name": "prior_only"}],
    )
    execute(run, STAGES, quiet=True)
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
    for rows in (unscored, failed, nobody, refused):
        write_rows(path, ScoreRow, rows)
        code, out, _ = said("check", copied, "--max", "rouge1=1", "--max-verbatim", "99")
        assert code == 1
        lost = "embedding_rows under no defense: 3 of 3 jobs failed or were cut short"
        assert out.splitlines() == [
            *([lost] if rows is failed else []),
            "under no defense: no finished attack has a score of rouge1",
            "under no defense: no finished attack has a score of mse or exact_match",
        ]


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_blank_guesses_of_jobs_that_did_not_end_hold_no_limit(
    status: str, copied: Path, said: Said
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
    assert out == "embedding_rows under no defense: 2 of 3 jobs failed or were cut short\n"


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
    assert (code, out) == (1, "under no defense: no finished attack has a score of rouge1\n")


def test_many_examples_of_one_client_hold_no_limit(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    rows = [
        replace(row, client=0, example=row.client, value=0.1 + row.client / 100)
        for row in read_rows(path, ScoreRow)
        if row.metric == "rouge1"
    ]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("check", copied, "--max", "rouge1=0.9")
    assert (code, "pass --compare mean" in out) == (1, True)
    assert said("check", copied, "--max", "rouge1=0.9", "--compare", "mean")[0] == 0


def test_a_run_without_the_main_metric_says_so(copied: Path, said: Said) -> None:
    rows = [r for r in read_rows(copied / "scores.parquet", ScoreRow) if r.metric != "rougeL"]
    write_rows(copied / "scores.parquet", ScoreRow, rows)
    last = said("report", copied)[1].splitlines()[-1]
    assert last.split() == ["no", "defense", "rougeL", "is", "not", "in", "metrics"]


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ((), "Pass --max"),
        (("--max", "rouge1"), "Write metric=value"),
        (("--max", "rogue1=1"), "Did you mean 'rouge1'?"),
        (("--max", "rouge1=1", "--defense", "nonee"), "Did you mean 'none'?"),
        (("--smallest", "rougeL=.05"), "Did you mean 'rouge'?"),
        (("--smallest", "rouge=2"), "less than 1"),
        (("--max", "mse=.1"), "Write --min."),
        (("--min", "psnr=20"), "Write --max."),
        (("--max", "psnr=nan"), "Write metric=value"),
        (("--max", "rougeL=30"), "between 0 and 1"),
    ],
)
def test_a_wrong_check_names_the_fix(
    wrong: tuple[str, ...], fix: str, finished: Path, said: Said
) -> None:
    code, _, error = said("check", finished, *wrong)
    assert code == 2
    assert fix in error


def test_nothing_measured_is_no_pass(copied: Path, said: Said) -> None:
    path = copied / "scores.parquet"
    rows = [replace(row, value=None) for row in read_rows(path, ScoreRow)]
    write_rows(path, ScoreRow, rows)
    assert said("check", copied, "--max", "rouge1=1")[0] == 1
    rows[0] = replace(rows[0], status="interrupted")
    write_rows(path, ScoreRow, rows)
    code, _, error = said("check", copied, "--max", "rouge1=1")
    assert (code, "1 values are missing" in error) == (2, True)
    path.write_bytes(path.read_bytes()[:1000])
    assert f"Run fedsim score {copied} again" in said("check", copied, "--max", "rouge1=1")[2]


@pytest.mark.parametrize("asked", [("--max", "rouge1=1"), ("--max-verbatim", "0")])
def test_a_run_without_an_attack_is_no_pass(
    copied: Path, said: Said, asked: tuple[str, ...]
) -> None:
    write_rows(copied / "scores.parquet", ScoreRow, [])
    code, out, _ = said("check", copied, *asked)
    assert (code, "no attack was run" in out) == (1, True)


def test_runs_differ_by_what_moved(finished: Path, copied: Path, said: Said) -> None:
    code, out, _ = said("diff", finished, finished)
    assert code == 0
    assert out.startswith("0 of ")
    path = copied / "scores.parquet"
    rows = [
        replace(row, value=0.25)
        if (row.attack, row.metric, row.control) == ("embedding_rows", "rougeL", "none")
        else row
        for row in read_rows(path, ScoreRow)
    ]
    write_rows(path, ScoreRow, rows)
    code, out, _ = said("diff", finished, copied)
    line, count = out.splitlines()
    said_so = "no defense, embedding rows, ROUGE-L: 1.00 to 0.250, \N{MINUS SIGN}0.750"
    assert line == f"{said_so}, 3 pairs"  # three clients have no interval
    assert code == 0
    assert count.startswith("0 of ")
    assert "have no interval (too few clients, or one seed)" in count
    other = [replace(row, row=row.client + 1000) for row in rows]
    write_rows(path, ScoreRow, other)  # other private examples: the intervals are far apart
    printed = json.loads(said("diff", finished, copied, "--json")[1])["changes"]
    (moved,) = (one for one in printed if "embedding rows, ROUGE-L" in one["what"])
    assert (moved["paired"], moved["high"]) == (0, None)
    assert "unpaired" in said("diff", finished, copied, "--all")[1]
    without = [row for row in rows if row.attack != "embedding_rows"]
    write_rows(path, ScoreRow, without)
    assert "only in" in said("diff", finished, copied)[1]
    (copied / "summary.json").unlink()
    assert f"Run fedsim report {copied} first" in said("diff", finished, copied)[2]


def test_the_attacks_of_a_run_are_compared_on_the_same_examples(
    finished: Path, copied: Path, said: Said
) -> None:
    code, out, _ = said("diff", finished, "--all")
    assert code == 0
    assert "no defense, embedding rows to prior only, ROUGE-L: 1.00 to " in out
    printed = json.loads(said("diff", finished, "--json")[1])["changes"]
    (rouge,) = (one for one in printed if one["what"].endswith("ROUGE-L"))
    scores = fedsim.load(finished).scores.query("metric == 'rougeL' and control == 'none'")
    means = scores.groupby("attack").value.mean()
    assert (rouge["before"], rouge["after"]) == (means.embedding_rows, means.prior_only)
    assert rouge["paired"] == 3
    named = said("diff", finished, "--attack", "embedding_rows", "--attack", "prior_only", "--json")
    assert json.loads(named[1])["changes"] == printed
    assert said("diff", finished, "--attack", "lamp")[2].endswith(
        "--attack 'lamp': no such attack was scored. Known: embedding_rows, prior_only.\n"
    )
    alone = said("diff", finished, "--attack", "prior_only")[2]
    assert "no two attacks of prior_only were scored" in alone
    assert alone.endswith("Name another: embedding_rows.\n")
    assert "two runs are given" in said("diff", finished, copied, "--attack", "lamp")[2]


def test_captures_are_removed_and_the_report_stays(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = sorted(copied.glob("*/captures"))
    for answer, status in (("", 2), ("n\n", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        stopped = said("rm", copied, "--captures")
        assert (stopped[0], "Pass --yes" in stopped[2]) == (status, status == 2)
        assert all(path.exists() for path in captures)
    code, out, _ = said("rm", copied, "--captures", "--yes")
    assert (code, out.startswith(f"{copied}: freed ")) == (0, True)
    assert not any(path.exists() for path in captures)
    assert "not simulated yet" in said("attack", copied)[2]
    assert said("report", copied)[0] == 0
    assert said("rm", copied, "--yes")[0] == 0
    assert not copied.exists()


def test_only_runs_are_removed(copied: Path, said: Said, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert "no run folder" in said("rm", tmp_path / "notes", "--yes")[2]
    (copied / "mine").mkdir()
    before = files_of(copied).keys()
    assert "is no part of a run" in said("rm", copied, "--yes")[2]
    assert files_of(copied).keys() == before


def test_the_report_is_opened_where_there_is_a_screen(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    page = copied / "report" / "index.html"
    assert said("open", copied)[:2] == (0, f"{page}\n")
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert said("open", copied)[0] == 0
    assert opened == [page.as_uri()]
    page.unlink()
    assert f"Run fedsim report {copied} first" in said("open", copied)[2]


def test_the_shell_completes_runs_and_experiments(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/experiment.toml").touch()
    Path("quick-look.toml").touch()
    shell = ShellComplete(typer.main.get_command(cli.app), {}, "fedsim", "_FEDSIM_COMPLETE")

    def completed(*words: str) -> set[str]:
        return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}

    assert completed("ex") == {"export"}
    assert {"quickstart", "quick-look.toml"} <= completed("run", "qui")
    assert completed("attack", "runs/") == completed("rm", "r") == {"runs/mine"}
    assert "--install-completion" in said("--help")[1]


def test_a_sigterm_says_how_to_continue(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("experiments.invocation.Invocation.run", terminated)
    code, _, error = said("run", "quickstart")
    assert (code, error) == (
        143,
        "fedsim: terminated. Run the same command again to continue.\n",
    )


@pytest.mark.slow
def test_a_sigterm_while_ray_works_is_one_line(tmp_path: Path) -> None:
    """Ray's own handler prints a stack of C++ and aborts."""
    (tmp_path / "small.toml").write_text(BASE)
    command = [sys.executable, "-m", "experiments.cli", "run", str(tmp_path / "small.toml")]
    changes = ["--set", "attacks=[{name='inverting',steps=100000}]", "--engine", "ray"]
    started = subprocess.Popen(
        [*command, *changes, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    assert any(line.startswith("simulate:") for line in started.stderr)
    started.send_signal(signal.SIGTERM)
    assert started.stderr.read().splitlines()[-1].startswith("fedsim: terminated.")
    assert started.wait(60) == 143


def test_a_folder_without_runs_says_so(said: Said, tmp_path: Path) -> None:
    assert "holds no run" in said("ls", tmp_path)[2]


def test_a_dry_run_runs_nothing(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    code, out, _ = said("run", "small.toml", "--dry-run")
    assert code == 0
    assert "prior_only" in out
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_an_interrupt_says_how_to_continue(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.invocation.Invocation.run", interrupted)
    code, _, error = said("run", "quickstart")
    assert code == 130
    assert "interrupted. Run the same command again" in error


def test_options_of_foreign_captures_do_not_fit_a_run(said: Said) -> None:
    code, _, error = said("attack", "quickstart", "--model", "gpt2")
    assert code == 2
    assert "--model: is for the captures of another application" in error


def test_captures_that_are_nowhere_are_what_is_refused(said: Said, tmp_path: Path) -> None:
    code, _, error = said("score", str(tmp_path / "captures"), "--truth", str(tmp_path))
    assert code == 2
    assert f"{tmp_path / 'captures'}: no such folder" in error


def test_more_workers_than_cores_are_remarked_on(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("experiments.pipeline.execute", lambda *_, **__: sys.exit(0))
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    command = ("run", "small.toml", "--engine", "ray", "--workers")
    assert "8 workers share 2 cores" in said(*command, "8")[2]
    assert said(*command, "2")[2] == ""
