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


@pytest.fixture(scope="module")
def victim() -> dict[str, object]:
    """The names that the example of ``fedsim.Update`` leaves, on which others build."""
    return run(fedsim.Update, {})


def run(public: object, names: dict[str, object]) -> dict[str, object]:
    """Run the example of something public, which may use names; returns all names after it."""
    example = doctest.DocTestParser().get_doctest(public.__doc__ or "", names, str(public), None, 0)
    assert example.examples, f"{public} shows no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    assert not runner.run(example, out=output.append, clear_globs=False).failed, "".join(output)
    return example.globs


@pytest.mark.some(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(
    name: str,
    victim: dict[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("example"))
    module, _, attribute = name.rpartition(".")
    public = getattr(importlib.import_module(module), attribute)
    run(public, victim if "``victim`` of `fedsim.Update`" in public.__doc__ else {})
