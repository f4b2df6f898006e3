"""What the benchmark of architectures prints becomes the rows of its result file."""

import pytest

from benchmarks.bench_families import FamilyRow
from docs import benched
from docs.measured import Row


def test_each_line_of_the_benchmark_is_a_row() -> None:
    lines = [
        FamilyRow("bert", "factored gradient", 4, error=2.04e-7, seconds=1.5),
        FamilyRow("bert", "span, B = 4", 4, exact=3, seconds=2.0),
        FamilyRow("bert", "film with spans", 1, reason="predicts no next token"),
        FamilyRow("bert", "LTI", 1),
    ]
    result = benched.families(lines)
    setting = {"architecture": "bert"}
    assert result.rows == (
        Row(setting=setting, measure="gradient from factors: error", outcome="2e-07"),
        Row(setting=setting, measure="B = 4", n=4, mean=0.75, unit="of n"),
        Row(setting=setting, measure="FILM with spans", outcome="no: predicts no next token"),
        Row(setting=setting, measure="LTI", outcome="runs"),
    )
    assert (result.cpu_seconds, result.generator.split(" | ")[0]) == (4, f"{result.command} --json")
    with pytest.raises(KeyError):
        benched.families([FamilyRow("bert", "another attack", 1)])
