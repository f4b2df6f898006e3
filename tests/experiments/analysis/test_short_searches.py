"""An attack with too small a budget finds nothing anywhere, and that proves nothing."""

from typing import Any

import pytest

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from experiments.report.beyond import beyond
from experiments.report.run_results import read_results, write_summary
from tests.apps.cases import IMAGES, TEXT, Make

NOISE = {"name": "gaussian_noise", "std": 0.01}
SEARCHES: dict[str, tuple[dict[str, Any], str]] = {
    "images": (IMAGES, "inverting"),
    "texts": (TEXT, "tag"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_of_one_step_is_no_positive_control(kind: str, make_run: Make) -> None:
    base, name = SEARCHES[kind]
    run = make_run(
        base,
        auxiliary={"split": "public", "rows": 20},
        federation={"clients": 8, "rounds": 1, "client_rows": 1, "batch_size": 1},
        defenses=[{"name": "none"}, NOISE],
        attacks=[{"name": name, "steps": 1, "adaptive": True}, {"name": "prior_only"}],
    )
    assert not execute(run, STAGES[:3], quiet=True).failed
    (section,) = write_summary(run.root).sections
    assert len(section.evidence.verdicts) == 2
    for verdict in section.evidence.verdicts:
        assert verdict.rows == "not decided"
        assert "no_control" in [reason.kind for reason in verdict.reasons]


def test_three_members_beside_four_rows_hide_no_member(make_run: Make) -> None:
    run = make_run(
        IMAGES,
        task={"heldout_rows": 16},
        candidates={"fresh": 4, "share": 1.0},
        federation={"clients": 3, "rounds": 1, "client_rows": 1, "batch_size": 1},
        defenses=[{"name": "none"}, NOISE],
        attacks=[{"name": "membership", "statistic": "cosine"}],
    )
    execute(run, STAGES[:3], quiet=True)
    findings = write_summary(run.root)
    (section,) = findings.sections
    inferences = beyond(read_results(run.root, findings, examples=False))
    assert [known.defense for known in inferences] == ["none", "Gaussian noise (std=0.01)"]
    for known in inferences:
        kinds = {said.reason for _, said in known.sentences}
        assert kinds >= {"inferred.no_members", "inferred.more_members"}
    assert all(verdict.word == "not attacked" for verdict in section.evidence.verdicts)
