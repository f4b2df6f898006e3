"""Components and thresholds of span are changed from outside, and come back afterwards."""

import sys
from pathlib import Path

import pytest

from attacks.span.causal import tree
from attacks.span.encoder import joint_words, proposals
from attacks.tokens import candidates, prefix_search
from benchmarks import bench_ablation
from benchmarks.bench_ablation import PLAN, ablation, recorded
from benchmarks.span_changes import COMPONENTS, THRESHOLDS, changed
from docs.measured import ResultFile

TINY = {"gpt2-8k": ("tiny-gpt2", "sentences", "train[:20]")}
CHANGES = [f"{name} x {factor}" for name in THRESHOLDS for factor in ("1/2", "2")]
CELL = ("gpt2-8k", "none", 1)


@pytest.mark.parametrize("name", [*COMPONENTS, *CHANGES])
def test_what_is_changed_exists(name: str) -> None:
    with changed(name):
        pass  # a target that is not there raises AttributeError


def test_a_threshold_is_scaled_inside_alone() -> None:
    before = candidates.GAP, prefix_search.PREFIXES, vars(tree)["PREFIXES"]
    with changed("gap x 2"), changed("prefixes x 1/2"):
        assert 2 * before[0] == candidates.GAP
        assert prefix_search.PREFIXES == vars(tree)["PREFIXES"] == before[1] // 2
    assert before == (candidates.GAP, prefix_search.PREFIXES, vars(tree)["PREFIXES"])


def test_a_private_threshold_leaves_its_namesakes_alone() -> None:
    before = vars(joint_words)["_NEAREST"], vars(proposals)["_NEAREST"]
    with changed("nearest words x 2"):
        assert vars(joint_words)["_NEAREST"] == 2 * before[0]
        assert vars(proposals)["_NEAREST"] == before[1]


def test_a_module_without_a_name_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backend", object())  # as some libraries leave one
    before = candidates.GAP
    with changed("gap x 2"):
        assert 2 * before == candidates.GAP


def test_every_change_is_measured_in_some_cell() -> None:
    measured = {name for changes in PLAN.values() for name in changes}
    assert set(COMPONENTS) == {name for name in measured if " x " not in name}
    assert set(CHANGES) == {name for name in measured if " x " in name}


def test_rows_are_appended_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ablation, "MODELS", TINY)
    monkeypatch.setattr(bench_ablation, "PLAN", {CELL: ("sweep", "gap x 2")})
    out = tmp_path / "rows.jsonl"
    rows = [*ablation(out, [5], [CELL])]
    assert [row.change for row in rows] == ["", "sweep", "gap x 2"]
    assert [row.exact for row in rows] == [1, 1, 1]
    assert [*ablation(out, [5], [CELL])] == []
    assert len(out.read_text().splitlines()) == 3
    result = ResultFile.model_validate(recorded(out))
    assert {row.setting["change"] for row in result.rows} == {"sweep", "gap x 2"}
    (difference, *_) = [row for row in result.rows if row.measure == "difference"]
    assert (difference.mean, difference.n) == (0, 1)
