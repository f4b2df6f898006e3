"""What a run's verdicts become in its evidence."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.report.assessment import _open, _persons
from experiments.report.register import register
from experiments.wording.catalogue import sentence
from fedsim.api.findings import DOUBTFUL
from fedsim.api.run import RunFolder
from fedsim.records import ScoreRow
from fedsim.store.rows import write_rows
from tests.experiments.analysis.cases import cell
from tests.experiments.analysis.membership_rows import row
from tests.experiments.report.cases import clients, section, verdict


def test_exact_returns_that_chance_may_explain_are_counted_apart() -> None:
    open_verdict = verdict("not decided", verbatim=clients(0), exact=clients(2))
    certain = verdict("leaks", verbatim=clients(2), exact=clients(2))
    kinds = [
        {person.kind: person.hit for person in _persons(section(judged))}
        for judged in (open_verdict, certain)
    ]
    assert kinds[0] == {"verbatim": 0, "recognisable": 0, DOUBTFUL: 2}
    assert DOUBTFUL not in kinds[1]


def test_what_is_open_stands_beside_what_leaks() -> None:
    leak = verdict("labels leak")
    assert list(_open(leak)) == [
        "Labels leak, class only.",
        sentence("risk.not decided"),
    ]
    assert list(_open(verdict("leaks"))) == ["Leaks, recognisable."]
    assert list(_open(verdict("no leak found"))) == []


def test_a_membership_attack_that_refused_everywhere_is_in_the_register(tmp_path: Path) -> None:
    reason = f"there are no candidates to rank. Read {Path.home()}/notes first."
    refused = [replace(row(0.0, c), value=None, status="skipped", reason=reason) for c in range(3)]
    cut = [row(0.9, c, status="exhausted", attack_options="{}") for c in range(3)]
    write_rows(tmp_path / "membership.parquet", ScoreRow, [*refused, *cut])
    stage = SimpleNamespace(attack_stage=SimpleNamespace(time_budget=60.0), name="r")
    run: Any = SimpleNamespace(
        membership=RunFolder(tmp_path).membership,
        cells=[SimpleNamespace(name="c", config=cell(0), experiment=stage)],
        plan=SimpleNamespace(experiments=[]),
    )
    lines = {line.attack: line for line in register(run, [], {})}
    assert len(lines) == 2
    (none,) = (line for line in lines.values() if line.jobs["skipped"])
    assert none.objective == "membership inference"
    assert (none.jobs["skipped"], none.jobs["done"]) == (3, 0)
    assert none.outcome == "no score: there are no candidates to rank. Read .../notes first."
    (late,) = (line for line in lines.values() if line.jobs["exhausted"])
    assert "3 of jobs" in late.outcome
