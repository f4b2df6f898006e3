"""A paper's cells stand beside the values of the result files, or beside the reason for none."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs import compared
from docs.compared import HEADER
from docs.measured import PAPERS

VALUE = {"result": "mnist-dlg", "setting": {"attack": "DLG, LeNet, B = 1"}, "measure": "PSNR"}
COUNT = {**VALUE, "measure": "label right"}


def lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *references: Mapping[str, object]
) -> list[list[str]]:
    cell = {
        "table": "table 1",
        "cell": "MNIST",
        "paper": "20",
        "references": references,
        "differs": "steps",
    }
    (folder / "one.json").write_text(json.dumps({"rows": [cell]}))
    monkeypatch.setattr(compared, "PAPERS", folder)
    return compared.compared("one")


def test_a_cell_has_its_values_and_their_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = lines(tmp_path, monkeypatch, VALUE, COUNT)
    assert printed == [
        [
            *("table 1", "MNIST", "20", "59.0 / 24 of 24", "24"),
            *("55.2 to 61.6 / 0.86 to 1.00", "steps", "`fedsim run mnist-dlg`", "0.04"),
        ]
    ]
    assert len(printed[0]) == len(HEADER)
    assert compared.hours("one") == "CPU hours of these files: table 1 0.04."


def test_what_was_not_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(tmp_path, monkeypatch)[0][3:6] == ["not measured", "–", "–"]  # noqa: RUF001
    assert compared.unmeasured() == [["[one](one.md)", "table 1", "MNIST", "steps"]]
    lines(tmp_path, monkeypatch, VALUE)
    assert not compared.unmeasured()


def test_a_reference_names_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match="0 values"):
        lines(tmp_path, monkeypatch, {**VALUE, "measure": "no such measure"})


def test_every_cell_says_what_differs() -> None:
    assert {path.stem for path in PAPERS.glob("*.json")} == {"dlg", "film", "lamp", "lti"}
    for path in PAPERS.glob("*.json"):
        for line in compared.compared(path.stem):
            assert all(line[1:]), line
