"""``fedsim audit`` on whole runs."""

import json

import pytest

from experiments.bounds.audit import AuditRecord, audit
from experiments.cli import main
from fedsim.errors import ConfigError
from fedsim.store.files import read_record
from tests.apps.cases import IMAGES, Make, simulate

PRIVATE = [
    {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.8},
    {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.6},
    {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.0},
    {"name": "none"},
]


@pytest.mark.slow
def test_bounds_of_a_run(
    make_run: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(
        IMAGES,
        task={"split": "train[:12]"},
        federation={"rounds": 2, "batch_size": 4},
        capture={"rounds": (2,)},
        defenses=PRIVATE,
        attacks=[],
    )
    simulate(run)
    monkeypatch.setattr("sys.argv", ["fedsim", "audit", str(run.root), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    record = read_record(run.root / "audit.json", AuditRecord)
    epsilon = record.model_dump(mode="json", exclude={"seal"})
    assert printed == {"membership": [], "epsilon": epsilon}
    assert [(row.defense, row.unit, row.round) for row in record.rows] == [
        (defense, unit, round_)
        for defense, unit in (("dp_sgd", "example"), ("dp_client", "update"))
        for round_ in (1, 2)
    ]
    for row in record.rows:
        assert row.lower < row.epsilon
        assert row.any_mechanism < row.epsilon
        assert row.shift == pytest.approx(1, abs=0.2)
        assert row.canaries == 1000
        # Canaries of dp_client send one direction, or its opposite.
        relation = "replace" if row.unit == "update" else "add_or_remove"
        assert row.epsilon == pytest.approx(getattr(row.accounted, relation))
        assert f"at most {row.accounted.both}, of one run" in record.text()
    assert max(row.lower / row.epsilon for row in record.rows) > 0.5
    assert list(record.skipped.values()) == [
        "it adds no noise, so epsilon is infinite",
        "its defense is not dp_sgd or dp_client alone",
    ]
    assert record.text().endswith("4 claims audited, 0 refuted")
    with pytest.raises(ConfigError, match="canaries: 19 is too few"):
        audit(run, 19)
    with pytest.raises(ConfigError, match="canaries: 90000 do not fit into the"):
        audit(run, 90_000)
