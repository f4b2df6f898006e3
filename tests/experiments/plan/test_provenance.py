"""``provenance.json`` that is cut, binary or no table is named in one line by whoever reads it."""

from __future__ import annotations

import re

import pytest

from experiments.analysis.findings import Findings
from experiments.plan.folder import note_provenance
from experiments.report.report import write_report
from fedsim.errors import StoreError
from tests.apps.cases import IMAGES, Make


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
