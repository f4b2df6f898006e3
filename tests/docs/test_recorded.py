"""A run folder becomes a result file; a file that is there keeps its words and its layout."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docs import measured, recorded, values
from docs.measured import Columns, Row
from experiments.analysis.statistics import mean
from experiments.plan.folder import Run
from experiments.wording.names import title
from fedsim.errors import ConfigError
from fedsim.records import ScoreRow
from fedsim.store.rows import read_rows, write_rows

MEASURE = {"measure": "ROUGE-1"}


@pytest.mark.slow
def test_a_run_becomes_a_file_and_the_file_is_renewed(run: Run, results: Path) -> None:
    found = values.values(run)
    new = recorded.record(run, "new", 12.5)
    assert recorded.write(new, "new") == results / "new.json"
    assert measured.read("new") == new
    assert (new.seed, new.cpu_seconds, new.columns.lines) == (0, 12.5, ("attack",))
    assert new.notes[0].startswith("Jobs: ")
    assert len(new.rows) == len(found) == len({(str(row.setting), row.measure) for row in new.rows})
    by_value = {(one.labels["attack"], one.measure): one for one in found}
    for row in new.rows:
        value = by_value[row.setting["attack"], row.measure]
        assert row.mean == pytest.approx(value.mean, rel=1e-4)
        assert row.n == value.n

    told = [row.model_copy(update={"paper_value": 0.5}) for row in new.rows]
    changed = {"title": "Told", "paper": "P", "rows": (*told,), "notes": ("Mind.", *new.notes)}
    recorded.write(new.model_copy(update=changed), "new")
    again = recorded.record(run, "new", None)
    assert (again.title, again.paper, again.notes) == ("Told", "P", ("Mind.", *new.notes))
    assert {row.paper_value for row in again.rows} == {0.5}
    assert again.cpu_seconds_reason


@pytest.mark.slow
def test_rows_with_a_source_keep_their_layout(run: Run, results: Path) -> None:
    new = recorded.record(run, "new", 1.0)
    wanted = next(row for row in new.rows if row.measure == "ROUGE-1")
    source = {**wanted.setting, **MEASURE}
    own = Row(setting={"who": "us"}, measure="R-1", unit="percent", mean=1.0, source=source)
    papers = Row(setting={"who": "them"}, measure="R-1", unit="percent", paper_value=90.0)
    shaped = new.model_copy(update={"rows": (own, papers), "columns": Columns(lines=("who",))})
    recorded.write(shaped, "shaped")
    renewed = recorded.record(run, "shaped", 1.0)
    assert renewed.columns == shaped.columns
    assert renewed.rows[0].setting == {"who": "us"}
    assert renewed.rows[0].mean == pytest.approx(100 * (wanted.mean or 0), rel=1e-4)
    assert renewed.rows[1] == papers

    (results / "unsourced.toml").write_text("[rows]\nshaped = 1\n")
    for rows, fault in (
        ((own.model_copy(update={"source": MEASURE}),), "names [2-9] values"),
        ((own.model_copy(update={"source": {"measure": "none such"}}),), "names 0 values"),
        ((own, own.model_copy(update={"source": {"by hand": "5e1f0aa"}})), "mapped by hand"),
    ):
        recorded.write(shaped.model_copy(update={"rows": rows}), "shaped")
        with pytest.raises(ConfigError, match=fault):
            recorded.record(run, "shaped", 1.0)


@pytest.mark.slow
def test_a_source_tells_several_runs_of_one_file_apart(run: Run, results: Path) -> None:
    new = recorded.record(run, "new", 1.0)
    wanted = new.rows[0]
    for label, fault in ({"run": "2"}, ""), ({}, "names 2 values"):
        row = wanted.model_copy(update={"source": {**(wanted.source or {}), **label}})
        recorded.write(new.model_copy(update={"rows": (row,)}), "both")
        if fault:
            with pytest.raises(ConfigError, match=fault):
                recorded.record(run, "both", 1.0, [run])
        else:
            assert recorded.record(run, "both", 1.0, [run]).rows == (row,)


def test_a_row_of_two_attacks_is_their_paired_difference(run: Run, results: Path) -> None:
    new = recorded.record(run, "new", 1.0)
    means = {row.setting["attack"]: row.mean for row in new.rows if row.measure == "ROUGE-1"}
    names = [name for name in means if name == "prior only" or "," not in name]
    first = next(name for name in names if name != "prior only")
    source = {"attack": f"prior only less {first}", **MEASURE}
    row = Row(setting={"who": "less"}, measure="R-1", unit="1", mean=0.0, source=source)
    recorded.write(new.model_copy(update={"rows": (row,)}), "less")
    (renewed,) = recorded.record(run, "less", 1.0).rows
    assert renewed.mean == pytest.approx((means["prior only"] or 0) - (means[first] or 0), abs=1e-4)

    sources = [
        {"attack": attack, **MEASURE} for attack in (first, f"{first}, other client's update")
    ]
    both = f"{first} less {first}, other client's update"
    rows = [row.model_copy(update={"source": x}) for x in (*sources, {"attack": both, **MEASURE})]
    recorded.write(new.model_copy(update={"rows": tuple(rows)}), "less")
    attack, control, gain = (row.mean or 0.0 for row in recorded.record(run, "less", 1.0).rows)
    assert gain == pytest.approx(attack - control, abs=1e-4)


@pytest.mark.slow
def test_a_row_counts_what_came_back_exactly(run: Run, results: Path) -> None:
    new = recorded.record(run, "new", 1.0)
    for value in [one for one in values.derived(run) if one.measure == "exact"]:
        source = {"attack": value.labels["attack"], "measure": "exact"}
        row = Row(setting={"who": "us"}, measure="exact", unit="of n", mean=0.0, n=1, source=source)
        recorded.write(new.model_copy(update={"rows": (row,)}), "exact")
        (renewed,) = recorded.record(run, "exact", 1.0).rows
        scores = [
            score.value or 0.0
            for score in read_rows(run.root / "scores.parquet", ScoreRow)
            if (title(score.attack), score.metric) == (value.labels["attack"], "exact_match")
            and (score.control, score.probe) == ("none", "none")
        ]
        hits = sum(score == 1.0 for score in scores)
        assert renewed.text(2).startswith(f"{hits} of {len(scores)}")
        break
    else:
        pytest.fail("no attack could be exact")


def test_what_the_clock_ended_is_no_number(
    run: Run, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = values.findings(run)
    (section,) = findings.sections
    ended = [
        result.model_copy(
            update={"jobs": {**result.jobs, "timeout": int(result.attack != "prior_only")}}
        )
        for result in section.results
    ]
    late = section.model_copy(update={"results": tuple(ended)})
    monkeypatch.setattr(
        values, "findings", lambda _: findings.model_copy(update={"sections": (late,)})
    )
    rows = recorded.record(run, "new", 1.0).rows
    said = {row.setting["attack"]: row.text(2) for row in rows if row.measure == "ROUGE-L"}
    assert said["embedding rows"].endswith("(unfinished)")
    assert "unfinished" not in said["prior only"]


def test_the_command_is_the_one_that_was_typed_first(run: Run, results: Path) -> None:
    path, name = run.root / "provenance.json", run.plan.name
    text = path.read_text()
    for typed, kept in (
        (f"fedsim run {name} --json --out /tmp/x --set a=1", f"fedsim run {name} --set a=1"),
        (f"fedsim run {name} --engine in-process --quiet", f"fedsim run {name}"),
        (f"fedsim attack runs/{name}", f"fedsim run {name}"),
    ):
        path.write_text(json.dumps({**json.loads(text), "commands": {"simulate": typed}}))
        assert recorded.record(run, "new", 1.0).command == kept
    path.write_text(text)


def test_the_paired_gain_of_each_verdict_is_among_the_values(run: Run) -> None:
    (section,) = values.findings(run).sections
    gains = {
        value.labels["attack"]: value
        for value in values.values(run)
        if " less " in value.labels["attack"]
    }
    assert gains
    for verdict in section.evidence.verdicts:
        assert verdict.over_null is not None
        assert verdict.null is not None
        one = gains[f"embedding rows less {title(verdict.null)}"]
        over = verdict.over_null
        assert (one.measure, one.n, one.mean) == (title(section.main), over.n, over.mean)
        assert (one.low, one.high) == (over.low, over.high)


def test_membership_is_among_the_values(run: Run) -> None:
    path = run.root / "membership.parquet"
    rows = [row for row in read_rows(run.root / "scores.parquet", ScoreRow) if row.value == 1]
    told = [replace(row, metric="membership_auc") for row in rows]
    before = values.values(run)
    write_rows(path, ScoreRow, told)
    new = [value for value in values.values(run) if value not in before]
    path.unlink()
    assert {(value.measure, value.mean) for value in new} == {("AUC", 1.0)}
    assert {value.labels["data"] for value in new} == {"sentences"}


def test_a_model_that_diverged_has_no_mean() -> None:
    labels = dict.fromkeys(("data", "model", "protocol", "setting", "defense", "attack"), "")
    value = values.Value({**labels, "probe": ""}, "loss", "1", 1, float("inf"), None, None)
    (row,), _ = recorded._tabulated([value])
    assert Row.model_validate(row.model_dump()).text(2) == "diverged"


def test_what_a_batch_has_as_a_whole_counts_batches() -> None:
    """Of five clients under four seeds, whose batches hold 16 texts."""
    scores, clients = [0.5] * 320, [i // 64 for i in range(320)]
    known = mean(scores, clients)
    assert (known.n, known.clusters) == (320, 5)
    assert values._size("rougeL_best", known, 16.0) == 20
    assert values._size("rougeL", known, 16.0) == 320
