"""``provenance.json`` that is cut, binary or no table is named in one line by whoever reads it."""

import re
import shutil

import pytest

from experiments.analysis.findings import Findings
from experiments.pipeline import RunOutcome, execute
from experiments.plan import folder
from experiments.plan.folder import note_provenance
from experiments.report.page import write_report
from fedsim.api.run import read_provenance
from fedsim.errors import StoreError
from tests.apps.cases import IMAGES, Make, merge


@pytest.mark.parametrize("content", [b'{"fedsim": "1', b"\xff\x00", b"[1]"])
def test_a_broken_provenance_is_named(content: bytes, make_run: Make) -> None:
    run = make_run(IMAGES)
    path = run.root / "provenance.json"
    path.write_bytes(content)
    said = f"^{re.escape(str(path))}: not .*Restore or delete the file\\.$"
    with pytest.raises(StoreError, match=said):
        note_provenance(run, "score", 1.0)
    with pytest.raises(StoreError, match=said):
        write_report(run.root, Findings(sections=()))
    path.unlink()
    note_provenance(run, "score", 1.0)


def test_jobs_of_an_earlier_commit_keep_it(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is resumed under another commit was not made by that."""
    blind = merge(IMAGES, {"attacks": [{"name": "prior_only"}], "federation": {"rounds": 1}})
    run = make_run(blind)

    def attack(commit: str) -> RunOutcome:
        monkeypatch.setattr(folder, "_commit", lambda: commit)
        return execute(run, ["simulate", "attack"], quiet=True)

    def commits() -> object:
        return read_provenance(run.root)["commits"]["attack"]

    assert not attack("one").unrepeated
    assert not attack("one").unrepeated
    later = attack("two")
    assert later.unrepeated.startswith("3 jobs stay as they ended, some under one; without ")
    assert later.unrepeated in later.line()
    assert commits() == "one"
    (guesses,) = run.root.glob("*/guesses")
    next(guesses.rglob("*.json")).unlink()
    assert attack("two").unrepeated.startswith("2 jobs stay as they ended, some under one; ")
    assert commits() == "one, then two"
    shutil.rmtree(guesses)
    assert not attack("three").unrepeated
    assert commits() == "one, then two, then three"
