"""``fedsim calibrate --lose`` alone: the strongest that is affordable, and the experiment of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from experiments.decision.answer import Answer
from experiments.plan.config import load_plan
from fedsim.store.files import read_record
from tests.apps.cases import IMAGES, merge
from tests.experiments.conftest import Said

CHANGES: dict[str, Any] = {
    "federation": {"clients": 2, "rounds": 1, "learning_rate": 0.1},
    "defenses": [{"name": "gaussian_noise", "std": 0.1}, {"name": "sign"}],
    "attacks": [{"name": "inverting", "steps": 1}],
    "utility_seeds": [5],
}


@pytest.mark.slow
def test_the_strongest_that_loses_no_more(tmp_path: Path, said: Said) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(merge(IMAGES, CHANGES)))
    ask = ("calibrate", str(file), "--lose", "loss=.02", "--depth", "2", "--out", str(out))
    ends = ("--range", "gaussian_noise=1e-6:1e4")
    code, text, _ = said(*ask, *ends, "--json")
    assert code == 0
    answer = read_record(out / "calibration" / "answer.json", Answer)
    assert json.loads(text)["families"][0]["option"] == "std"
    noise, sign = answer.families
    assert answer.seeds == (0, 5)
    # 1e-6 changes nothing, 0.1 is tried first, and at 1e4 nothing is left of the network.
    assert noise.defense is not None
    assert noise.defense["std"] < 1e4
    assert noise.end == ""
    assert all(
        trial.affordable({"loss": 0.02}) == (trial.costs[0].lost.mean <= 0.02)
        for trial in noise.tried
    )
    assert noise.at is not None
    assert noise.at.value == noise.defense["std"]
    assert sign.option is None
    assert sign.end == "not even the weakest"
    (equal,) = load_plan(str(out / "calibration" / "equal.toml"), []).experiments
    assert [table["name"] for table in equal.defenses] == ["none", "gaussian_noise"]
    assert not list(out.glob("*/captures/round-*"))
    again = said(*ask, *ends)
    assert again[0] == 0
    assert "- sign: not even the weakest: sign" in again[1]
    assert "fedsim run" in again[1]


def test_nothing_asked_is_an_error(tmp_path: Path, said: Said) -> None:
    file = tmp_path / "small.toml"
    file.write_text(tomli_w.dumps(merge(IMAGES, CHANGES)))
    code, _, error = said("calibrate", str(file), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--hold" in error


def test_its_plan_is_shown_though_nothing_is_captured(tmp_path: Path, said: Said) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(merge(IMAGES, CHANGES)))
    code, text, _ = said(
        "calibrate", str(file), "--lose", "loss=.02", "--out", str(out), "--dry-run"
    )
    assert code == 0
    assert "0 attacked captures" in text
    assert not out.exists()
