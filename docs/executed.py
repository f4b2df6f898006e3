"""Run the notebooks and store their outputs: ``python -m docs.executed [NAME ...]``."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def execute(path: Path) -> None:
    """Run one notebook in a kernel, in an empty folder, and keep what its cells show."""
    notebook: Any = nbformat.read(path, 4)
    with TemporaryDirectory() as place:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": place}}).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            cell.execution_count = None  # which says nothing of a notebook that ran from its top
            cell.metadata.pop("execution", None)
            for out in cell.outputs:
                out.pop("execution_count", None)
                if out.output_type == "execute_result":
                    out.execution_count = None
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")):
        execute(NOTEBOOKS / f"{name}.ipynb")
