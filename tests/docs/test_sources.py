"""A command makes each number of a result file; what older files lack may only fall."""

import json
from pathlib import Path

import pytest

from docs import recorded, sources, tables
from docs.measured import ResultFile, Row, read
from experiments.plan.folder import Run
from fedsim.errors import ConfigError

COPIED = Row(setting={"attack": "span"}, measure="ROUGE-1", mean=0.5, source={"by hand": "5e1f0aa"})
MNIST = read("mnist-dlg")


def test_no_file_lacks_more_sources_than_it_is_known_to() -> None:
    assert sources.lowered() == sources.exempt(), "run python -m docs.tables"
    for name in sources.names():
        assert not sources.refusal(read(name), name)


@pytest.mark.slow
def test_a_run_gives_every_row_its_source(run: Run, results: Path) -> None:
    found = recorded.record(run, "new", 1.0)
    assert all(row.source for row in found.rows)
    recorded.write(found, "new")
    again = recorded.record(run, "new", 1.0)
    assert again == found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": [COPIED.model_dump()]}, "was mapped by hand"),
        ({"notes": ["It has 0.123 of another."]}, "no row prints what the notes say: 0.123"),
        ({"notes": ["23 of 24 are exact."]}, "23 of 24"),
        ({"notes": ["It is 17 dB better."]}, "17"),
        ({"notes": ["A 95 % interval is 77 % narrower."]}, "say: 77. Add"),
    ],
)
def test_a_new_file_with_a_number_from_nowhere_is_refused(
    changes: dict[str, object], said: str, results: Path
) -> None:
    result = ResultFile.model_validate(MNIST.model_dump() | changes)
    with pytest.raises(ConfigError, match=said):
        recorded.write(result, "new")
    kind = "rows" if "rows" in changes else "notes"
    (results / "unsourced.toml").write_text(f"[{kind}]\nnew = 1\n")
    assert recorded.write(result, "new").exists()
    assert sources.lowered()[kind] == {"new": 1}
    generated = result.model_copy(update={"generator": "python -m docs.board"})
    assert not sources.refusal(generated, "other")


def test_a_value_without_a_source_is_no_result_file() -> None:
    bare = COPIED.model_dump() | {"source": None}
    with pytest.raises(ValueError, match="has a value and no source"):
        ResultFile.model_validate(MNIST.model_dump() | {"rows": [bare]})
    generated = {"rows": [bare], "generator": "python -m docs.board"}
    assert ResultFile.model_validate(MNIST.model_dump() | generated).rows[0].measured


def test_the_page_says_which_values_were_mapped_by_hand() -> None:
    copied = ResultFile.model_validate(MNIST.model_dump() | {"rows": [COPIED.model_dump()]})
    assert "1 of its 1 values were mapped by hand at 5e1f0aa." in tables.source(copied, "new")
    assert "by hand" not in tables.source(MNIST, "mnist-dlg")


def test_a_note_may_repeat_a_row_the_experiment_and_the_paper(results: Path) -> None:
    notes = ["The paper has 0.0038, we have 59.0 dB, 24 of 24 right, at a rate of 1.0."]
    result = ResultFile.model_validate(MNIST.model_dump() | {"notes": notes})
    assert recorded.write(result, "new").exists()


def test_counts_fall_and_never_rise(results: Path) -> None:
    table = MNIST.model_dump() | {"rows": [COPIED.model_dump()]}
    (results / "new.json").write_text(json.dumps(table))
    (results / "unsourced.toml").write_text("[rows]\nnew = 5\ngone = 2\n[notes]\nnew = 1\n")
    assert sources.lowered() == {"rows": {"new": 1}, "notes": {}}
    (results / "unsourced.toml").write_text("[rows]\nother = 1\n")
    assert sources.refusal(read("new"), "new")
    assert sources.lines() == [["`new`", "1 of 1", "0"]]
    assert sources.summary().startswith("0 of 1 measured rows")
