"""What the benchmark of architectures prints becomes the rows of its result file."""

import pytest

from benchmarks.bench_families import FamilyRow
from benchmarks.measure import PARTS, Measure
from docs import benched
from docs.measured import Row

TRAINED = "'/tmp/weights' is trained for text-classification and"


def test_each_line_of_the_benchmark_is_a_row() -> None:
    lines = [
        FamilyRow("bert", "factored gradient", 4, error=2.04e-7, seconds=1.5),
        FamilyRow("bert", "span, B = 4", 4, exact=3, seconds=2.0, unfinished=True),
        FamilyRow("bert", "film with spans", 1, reason=f"{TRAINED} predicts no next token"),
        FamilyRow("bert", "LAMP", 1),
        FamilyRow("bert", "TAG", 1),
        FamilyRow("gemma", "factored gradient", 4, error=4e-8),
    ]
    result = benched.families(lines)
    setting, gemma = {"architecture": "BERT"}, {"architecture": "Gemma"}
    found = Row(setting=setting, measure="B = 4", n=4, mean=0.75, unit="of n", outcome="unfinished")
    assert result.rows == (
        Row(setting=setting, measure="gradient from factors: error", outcome="2e-7"),
        found,
        Row(setting=setting, measure="FILM with spans", outcome="no: predicts no next token"),
        Row(setting=setting, measure="LAMP, TAG, DLG: 2 steps", outcome="runs"),
        Row(setting=gemma, measure="gradient from factors: error", outcome="below 1e-7"),
    )
    assert (result.cpu_seconds, result.generator.split(" | ")[0]) == (4, f"{result.command} --json")
    with pytest.raises(KeyError):
        benched.families([FamilyRow("bert", "another attack", 1)])


def test_each_measure_of_speed_is_a_row_and_its_goal_another() -> None:
    measured = [
        Measure.of("LeNet: a round", [1.0, 2.0, 3.0], "s", "-"),
        Measure("LeNet: bytes on disk / bytes of the updates", 1.01, "", "<= 1.02"),
    ]
    result = benched.speed("capture", measured)
    first, second = ({"what": name} for name in ("LeNet: a round, s", measured[1].name))
    assert result.rows == (
        Row(setting=first, measure="measured", mean=2.0, low=1.5, high=2.5),
        Row(setting=second, measure="measured", mean=1.01),
        Row(setting=second, measure="goal", outcome="<= 1.02"),
    )
    assert result.generator.endswith("capture --json | python -m docs.benched capture")
    assert benched.SPEEDS.keys() <= set(PARTS)
