"""What differs between two runs beside numbers."""

from experiments.analysis.differences import Comparison, _verdicts
from tests.experiments.report.cases import NOISE, section, verdict


def test_a_changed_verdict_is_said() -> None:
    noise = ("gaussian_noise", NOISE)
    before = section(verdict("leaks"), verdict("no leak found", *noise))
    after = section(verdict("leaks"), verdict("leaks", *noise))
    assert list(_verdicts(before, before, "")) == []
    said = tuple(_verdicts(before, after, ""))
    assert said == ("Gaussian noise (std=0.01): no leak found to leaks recognisable",)
    comparison = Comparison(changes=(), missing=(), verdicts=said)
    assert comparison.moved
    assert comparison.text().startswith(said[0])
