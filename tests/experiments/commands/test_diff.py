"""``fedsim diff``: what moved, and between which runs."""

import json
from dataclasses import replace
from pathlib import Path

import fedsim
from fedsim.records import ScoreRow
from fedsim.store.rows import read_rows, write_rows
from tests.experiments.conftest import Said


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
    assert "have no interval (other examples, too few clients, or one seed)" in count
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
