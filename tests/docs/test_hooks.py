"""The search of the documentation finds how to do it before the code that does it."""

from types import SimpleNamespace
from typing import Any

from docs.hooks import BOOSTS, on_page_markdown


def weight(path: str) -> float:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})
    on_page_markdown("", page)
    return float(page.meta.get("search", {"boost": 1.0})["boost"])


def test_how_tos_come_first_and_sources_last() -> None:
    paths = ("how-to/results.md", "tutorial/own-model.md", "reference/python.md")
    found = [weight(path) for path in (*paths, "decisions/index.md", "source/fedsim/x.py.md")]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(BOOSTS) + 1
