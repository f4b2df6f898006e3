"""Each component of span can be switched off from outside, and is on again afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_ablation
from benchmarks.bench_ablation import COMPONENTS, ablation, components, recorded, switched_off
from docs.measured import Result

TINY = {
    "gpt2-8k": ("tiny-gpt2", "sentences", "train[:20]"),
    "MiniLM": ("tiny-bert", "sentences", "train[:20]"),
}
CELLS = [
    (model, defense, batch)
    for model in bench_ablation.MODELS
    for defense in bench_ablation.DEFENSES
    for batch in (1, 4)
]


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_is_replaced_exists_and_comes_back(name: str) -> None:
    assert COMPONENTS[name]
    with switched_off(name):
        pass  # a target that is not there raises AttributeError


def test_every_component_is_measured_in_some_cell() -> None:
    assert {name for cell in CELLS for name in components(*cell)} == set(COMPONENTS)


def test_rows_are_appended_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ablation, "MODELS", TINY)
    out = tmp_path / "rows.jsonl"
    rows = [*ablation(out, [5], [("gpt2-8k", "none", 1)])]
    assert [row.without for row in rows] == ["", "sweep"]
    assert [row.exact for row in rows] == [1, 1]
    assert [*ablation(out, [5], [("gpt2-8k", "none", 1)])] == []
    assert len(out.read_text().splitlines()) == 2
    result = Result.model_validate(recorded(out))
    assert {row.setting["without"] for row in result.rows} == {"sweep"}
    assert json.loads(out.read_text().splitlines()[0])["recall"] == 1
