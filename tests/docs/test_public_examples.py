"""Each name of the Python interface shows how it is called, and the example runs."""

import doctest
import importlib
import re

import pytest

import fedsim
from docs.measured import ROOT

PAGE = ROOT / "docs" / "reference" / "python.md"
NAMES = sorted(
    {
        *re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE),
        *(f"{module}.{name}" for name, module in fedsim._OFFERED.items()),
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("example"))
    module, _, attribute = name.rpartition(".")
    public = getattr(importlib.import_module(module), attribute)
    example = doctest.DocTestParser().get_doctest(public.__doc__, {}, name, None, 0)
    assert example.examples, f"{name} shows no example"
    output: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=output.append)
    assert not result.failed, "".join(output)
