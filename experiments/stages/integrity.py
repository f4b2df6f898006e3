"""Whether a cell still holds what its simulation wrote."""

from pathlib import Path

from experiments.plan.cells import Cell
from fedsim.records import SimulationRecord
from fedsim.store.files import check_hashes, hashes, read_record, write_json


def seal_truth(cell: Cell) -> None:
    """Note the hashes of the truth, which the server may not read."""
    record = read_record(_path(cell), SimulationRecord)
    truth = hashes(cell.truth.root)
    write_json(_path(cell), record.model_copy(update={"truth": truth}))


def check_captures(cell: Cell) -> None:
    """Check that the captures are those of the simulation, which older runs did not note.

    Raises:
        StoreError: a file was changed, added or lost.
    """
    if known := read_record(_path(cell), SimulationRecord).captures:
        check_hashes(cell.captures.root, known)


def check_cell(cell: Cell) -> None:
    """As ``check_captures``, of the captures and the truth."""
    check_captures(cell)
    if known := read_record(_path(cell), SimulationRecord).truth:
        check_hashes(cell.truth.root, known)


def _path(cell: Cell) -> Path:
    return cell.folder / "simulation.json"
