"""``fedsim open``."""

from pathlib import Path

import pytest

from tests.experiments.conftest import Said


def test_the_report_is_opened_where_there_is_a_screen(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    page = copied / "report" / "index.html"
    assert said("open", copied)[:2] == (0, f"{page}\n")
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert said("open", copied)[0] == 0
    assert opened == [page.as_uri()]
    page.unlink()
    assert f"Run fedsim report {copied} first" in said("open", copied)[2]
