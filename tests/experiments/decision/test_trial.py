"""What a guess counts for at a strength."""

import pytest

from experiments.decision.targets import Target
from experiments.decision.trial import Guessed, _came_back, _score
from tests.experiments.analysis.cases import row

VERBATIM = Target("verbatim", 0.0)


def guessed(exact: float, *, certified: bool = False) -> Guessed:
    main = row(metric="rougeL", unit="1", value=exact)
    return {
        "rougeL": main,
        "exact_match": row(metric="exact_match", unit="1", value=exact, certified=certified),
    }


@pytest.mark.parametrize(
    ("exact", "certified", "blind", "guessable", "counts", "doubtful"),
    [
        (1.0, False, 0.0, False, 1.0, True),
        (1.0, False, 0.0, True, 0.0, True),  # counts for nothing, and keeps the strength open
        (1.0, True, 0.0, True, 1.0, False),
        (1.0, False, 1.0, True, 0.0, False),
        (0.0, False, 0.0, True, 0.0, False),
    ],
)
def test_exact_returns(
    exact: float, certified: bool, blind: float, guessable: bool, counts: float, doubtful: bool
) -> None:
    rows, nothing = guessed(exact, certified=certified), guessed(blind)
    assert _score(VERBATIM, rows, nothing, guessable=guessable) == counts
    assert _came_back(rows, nothing) == doubtful
