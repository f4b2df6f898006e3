"""Every published table is what its result file says, and every result file is published."""

import json
import re

import pytest

from docs import alive, claims, tables
from docs.claims import CLAIMS
from docs.measured import (
    HEADLINES,
    PAPERS,
    RESULTS,
    ROOT,
    Headlines,
    ResultFile,
    Row,
    look_up,
    read,
)
from fedsim.defenses import DEFENSES

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", tables.pages(), ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_files(path: object) -> None:
    text = (ROOT / str(path)).read_text(encoding="utf-8")
    assert tables.renewed(text) == text, "run python -m docs.tables"


def test_a_number_changed_by_hand_is_noticed() -> None:
    assert "160 of 160" in README
    assert tables.renewed(README.replace("160 of 160", "159 of 160")) == README


def test_every_file_stands_in_a_page() -> None:
    papers = {f"{tables.PAPERS}{path.stem}" for path in PAPERS.glob("*.json")}
    lists = {tables.PROGRESS, tables.SOURCES, tables.UNMEASURED, CLAIMS}
    assert set(tables.placed()) == {*NAMES, *lists, *papers}
    assert f"<!-- table: {HEADLINES} -->" in README


@pytest.mark.parametrize("name", [name for name in NAMES if name != HEADLINES])
def test_a_file_says_where_its_numbers_come_from(name: str) -> None:
    result = read(name)
    assert re.fullmatch(r"[0-9a-f]{7}", result.commit)
    assert alive.exists(result.commit) or alive.shallow(), f"{result.commit} is in no history"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", result.date)
    assert result.rows
    for row in result.rows:
        if row.mean is not None and row.low is not None and row.high is not None:
            assert row.low <= row.mean <= row.high, row
        assert row.unit != "of n" or row.mean is None or 0 <= row.mean <= 1


def test_headlines_repeat_one_value_each() -> None:
    rows = Headlines.model_validate(json.loads((RESULTS / "headline.json").read_text())).rows
    texts = [look_up(reference) for row in rows for reference in row.references]
    assert all(text in README for text in texts)
    wrong = rows[0].references[0].model_copy(update={"measure": "no such measure"})
    with pytest.raises(LookupError, match="0 values"):
        look_up(wrong)


def test_a_claim_stands_beside_the_value_that_its_cell_names() -> None:
    lines = {line[0].partition(" (")[0]: line for line in claims.rows()}
    published = {cls.title for cls in DEFENSES.values() if cls.family == "published"}
    assert published <= lines.keys()
    (adaptive,) = (
        r
        for r in read("published-defenses-2").rows
        if r.setting["defense"] == "TIP" and r.measure == "adaptive, dB"
    )
    assert lines["TIP"][3].startswith(f"{adaptive.text(1)} of ")
    assert claims._filled("{ghost: GHOST / span: exact match}") == "0 of 12 [0.00, 0.26]"
    with pytest.raises(ValueError, match="not enough values"):
        claims._filled("{ghost: GHOST / span: no such measure}")


def row(value: float, **changes: object) -> Row:
    source = {"attack": "DLG", "measure": "MSE"}
    given = {"setting": {"defense": "none"}, "measure": "MSE", "mean": value, "source": source}
    return Row.model_validate({**given, **changes})


def result(*rows: Row, **columns: object) -> ResultFile:
    return ResultFile.model_validate(
        {
            **json.loads((RESULTS / "dlg-images.json").read_text()),
            "columns": {"lines": ["defense"], **columns},
            "rows": [each.model_dump() for each in rows],
        }
    )


def test_a_value_has_its_interval_and_the_paper_a_column() -> None:
    recorded = result(row(-0.5, low=-1.0, high=0.25, paper_value=0.003, n=4))
    assert tables.table(recorded).splitlines() == [
        "| Defense | MSE | MSE, paper |",
        "| --- | --- | --- |",
        "| none | −0.50 [−1.00, 0.25] | 0.003 |",  # noqa: RUF001
    ]
    assert "n = 4; " in tables.source(recorded, "x")


def test_the_paper_may_have_a_line() -> None:
    recorded = result(row(0.5, paper_value=0.25), paper="line")
    assert tables.table(recorded).splitlines()[2:] == ["| none | 0.50 |", "| none, paper | 0.25 |"]


def test_shares_are_printed_as_counts() -> None:
    assert row(0.75, unit="of n", n=8, outcome="certified").text(2) == "6 of 8 (certified)"
    with pytest.raises(ValueError, match="needs n"):
        row(0.75, unit="of n")
    with pytest.raises(ValueError, match="a value or an outcome"):
        row(0.5, mean=None)
    with pytest.raises(ValueError, match="two ends"):
        row(0.5, low=0.25)
