"""``fedsim attest`` on a folder of captures."""

import json
from pathlib import Path

import pytest
import typer

import fedsim
from experiments.attest.command import attest
from experiments.commands.check import check
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureRecord
from fedsim.store.files import read_record, write_json
from tests.apps.cases import IMAGES, Make, simulate


def test_captures_are_attested_and_a_false_claim_ends_in_1(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(IMAGES)
    simulate(run)
    folder = Path(run.cells[0].folder) / "captures"
    with pytest.raises(typer.Exit) as told:
        attest(folder)
    assert told.value.exit_code == 0
    assert "nothing that defends is seen" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as told:
        attest(folder, claim="local_dp clip=1 epsilon=10 delta=1e-5", as_json=True)
    assert told.value.exit_code == 1
    seen = json.loads(capsys.readouterr().out)
    assert {each["word"] for each in seen["held"][1:]} == {"refuted"}
    assert len(seen["replies"]) == 6
    with pytest.raises(typer.Exit):
        attest(folder, rounds="1", clients="0,2")
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in shown[:2]] == [
        "round-0001-client-0000",
        "round-0001-client-0002",
    ]
    assert shown[2].startswith("clip")


def test_a_gate_asks_every_reply_of_a_run_for_noise(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [{"name": "gaussian_noise", "std": 0.02}]
    run = make_run(IMAGES, defenses=tables, federation={"rounds": 1, "clients": 2})
    simulate(run)
    for rule, code in (("noise >= .01", 0), ("noise >= .05", 1), ("noise <= .03", 0)):
        with pytest.raises(typer.Exit) as told:
            check(run.root, attest=[rule])
        assert told.value.exit_code == code, capsys.readouterr().out
    with pytest.raises(ConfigError, match="is no rule"):
        check(run.root, attest=["spam >= 1"])
    path = next(Path(run.cells[0].folder).glob("captures/*/*.json"))
    metrics = {"guard-exact": 0, "guard-rows": 1}
    record = read_record(path, CaptureRecord).model_copy(update={"metrics": metrics})
    write_json(path, record.sealed())
    sites = fedsim.attested(run.root)
    assert {each.key.round for each in sites} == {1}
    assert sorted(each.guarded for each in sites) == ["no guard", "shows rows"]
    for each in sites:
        assert each.attested.startswith("noise of 0.0")
        assert each.claimed.startswith("gaussian_noise: consistent; noise of 0.0")
