"""An edited record of a run is named in one line by every stage that reads it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from attacks.scheduling.prepared import PreparedRecord
from fedsim.config.toml_source import read_toml
from fedsim.errors import StoreError
from fedsim.records import SimulationRecord
from fedsim.store.files import digest, read_record, write_json
from tests.experiments.conftest import Said
from tests.experiments.security.cases import cell_of

STAGES = ("report", "score", "attack", "run", "doctor", "audit")


def changed(text: str, key: str, value: object) -> str:
    """JSON text with every value of a key replaced."""
    table = json.loads(text)

    def walk(node: object) -> None:
        for inner in node.values() if isinstance(node, dict) else ():
            walk(inner)
        if isinstance(node, dict) and key in node:
            node[key] = value

    walk(table)
    return json.dumps(table)


EDITS: dict[str, tuple[str, Callable[[str], str]]] = {
    "labels known": ("cell.json", lambda text: changed(text, "labels", True)),
    "more clients": ("cell.json", lambda text: changed(text, "clients", 400)),
    "a cohort": ("cell.json", lambda text: changed(text, "secure_aggregation", 3)),
    "a rate": ("cell.json", lambda text: changed(text, "learning_rate", 0.051)),
    "a seed": ("cell.json", lambda text: changed(text, "seed", 1)),
    "a defense": (
        "cell.json",
        lambda text: changed(text, "defense", [{"name": "gaussian_noise", "std": 1.0}]),
    ),
    "no JSON": ("cell.json", lambda text: text[:-9]),
    "a utility": ("simulation.json", lambda text: re.sub(r'("value": \d)', r"\g<1>1", text)),
    "the rows": ("simulation.json", lambda text: changed(text, "client_rows", [9, 9, 9])),
    "the bytes": ("simulation.json", lambda text: changed(text, "bytes_up", {"1": 7})),
    "a hash": ("simulation.json", lambda text: re.sub(r'(task.json": ")\w', r"\g<1>x", text)),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_record_is_refused(edit: str, copied: Path, said: Said) -> None:
    name, change = EDITS[edit]
    path = cell_of(copied) / name
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    for stage in STAGES:
        code, _, line = said(stage, copied)
        assert (code, line.count("\n")) == (2, 1), stage
        assert line.startswith(f"fedsim: {path}: "), line


@pytest.mark.parametrize("name", ["provenance.json", "summary.json"])
def test_a_digit_of_what_the_page_reads(name: str, copied: Path, said: Said) -> None:
    path = copied / name
    path.write_text(re.sub(r"\d", lambda one: str(9 - int(one[0])), path.read_text(), count=1))
    command = ("report", copied) if name == "provenance.json" else ("diff", copied, copied)
    code, _, line = said(*command)
    assert (code, line.startswith(f"fedsim: {path}: ")) == (2, True), line


def test_a_record_is_sealed_when_it_is_written(tmp_path: Path) -> None:
    record = PreparedRecord(attack="lti", sha256="0" * 64, order=("a", "b"), seconds=1.0)
    write_json(tmp_path / "x.json", record)
    assert read_record(tmp_path / "x.json", PreparedRecord).order == ("a", "b")
    for before, after in (('"a"', '"c"'), ('"lti"', '"ltj"'), ("1.0", "2.0"), ("000", "001")):
        text = (tmp_path / "x.json").read_text()
        (tmp_path / "y.json").write_text(text.replace(before, after, 1))
        with pytest.raises(StoreError, match=r"PreparedRecord .*differs from its seal"):
            read_record(tmp_path / "y.json", PreparedRecord)


def test_older_runs_have_no_seal(copied: Path, said: Said) -> None:
    path = cell_of(copied) / "simulation.json"
    table = json.loads(path.read_text())
    del table["seal"]
    path.write_text(json.dumps(table))
    assert read_record(path, SimulationRecord).seal is None
    assert said("score", copied)[0] == 0


def reseal(run: Path, stage: dict[str, object]) -> None:
    """Change the attack stage in a run folder and make its hash fit."""
    path = run / "experiment.toml"
    table = read_toml(path)
    for key in ("schema", "sha256"):
        del table[key]
    table["experiments"][0]["attack_stage"] |= stage
    body = tomli_w.dumps(table)
    path.write_text(f'schema = 1\nsha256 = "{digest(body.encode())}"\n{body}')


def test_a_run_folder_names_no_cluster(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    reseal(copied, {"address": "127.0.0.1:5999"})
    code, _, line = said("attack", copied)
    assert code == 0
    assert "names the Ray cluster '127.0.0.1:5999', which is not joined" in line
    dialled: list[object] = []
    monkeypatch.setattr("attacks.scheduling.cluster.start_ray", lambda *a: dialled.append(a[0]))
    monkeypatch.setattr("experiments.stages.attack.Attackers.close", lambda self: None)
    monkeypatch.setattr("attacks.scheduling.pool.RayPool.__init__", lambda *_, **__: 1 / 0)
    for given in ([], ["--address", "10.0.0.1:6379"]):
        with pytest.raises(ZeroDivisionError):
            said("attack", copied, "--engine", "ray", *given)
    assert dialled == [None, "10.0.0.1:6379"]


@pytest.mark.parametrize("experiments", ["1", '["x"]', "[[1]]", "{}"])
def test_experiments_of_another_type(experiments: str, copied: Path, said: Said) -> None:
    (copied / "experiment.toml").write_text(f'schema = 1\nname = "x"\nexperiments = {experiments}')
    code, _, line = said("report", copied)
    assert (code, line.count("\n")) == (2, 1)
