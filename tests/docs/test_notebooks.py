"""The notebooks run, and print what their texts say."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from docs.hooks import notebook
from docs.measured import ROOT

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))}
QUOTED = re.compile(r"```text\n(.*?)```", re.DOTALL)


def read(name: str) -> Any:
    notebook = nbformat.read(NOTEBOOKS[name], 4)
    nbformat.validate(notebook)
    return notebook


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_holds_what_it_shows(name: str) -> None:
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert len(cells) >= 3
    shown = [output for cell in cells for output in cell.outputs]
    assert shown
    assert not [out for out in shown if out.output_type == "error" or out.get("name") == "stderr"]
    text = NOTEBOOKS[name].read_text("utf-8")
    assert not re.search(r"/(?:tmp|home|root|work)/", text)  # of the machine that ran it
    assert len(text) < 200_000
    page = notebook(NOTEBOOKS[name])
    assert page.count("```text") + page.count("<div>") + page.count("<img") >= len(shown)


def test_a_notebook_shows_pictures_that_form() -> None:
    (cell,) = [cell for cell in read("invert-a-picture").cells if "on_step=" in cell.source]
    assert "image/png" in cell.outputs[0].data


def test_the_attack_of_the_notebook_is_exact_on_one_picture_alone() -> None:
    made: dict[str, Any] = {}
    for cell in read("write-an-attack").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, cell.id, "exec"), made)
    assert made["fedsim"].score(made["guess"], made["pictures"][:1]).mean("psnr") > 60
    assert made["fedsim"].score(made["blend"], made["pictures"]).mean("psnr") < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_a_kernel(name: str, tmp_path: Path) -> None:
    notebook = read(name)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said, shown = "", ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert all(quote in said for quote in QUOTED.findall(cell.source)), said
            continue
        said = "".join(out.get("text", "") for out in cell.outputs)
        shown += "".join(out.get("data", {}).get("text/html", "") for out in cell.outputs)
    assert "<table>" in shown or name == "audit-a-flower-app"
