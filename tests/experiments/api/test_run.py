"""``fedsim.api``: what the files of a run hold, and nothing heavy before it is asked for."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from experiments.report.headline import headline
from fedsim.api import ConfigError, Run, StoreError
from fedsim.api.victims import Victims
from fedsim.types import Batch

PROGRAM = """
import sys
from fedsim.api import Run
run = Run.open(sys.argv[1])
said = run.findings.conclusions[0].word
cells = [(cell.name, cell.config.seed, cell.simulation.utility, cell.attacks) for cell in run.cells]
assert run.ledger and run.provenance and cells and said
print(sorted({"torch", "pandas", "pyarrow", "flwr", "ray"} & sys.modules.keys()))
cells = list(run.cells)
cells[0].captures.load(cells[0].captures.keys()[0])
print("torch" in sys.modules)
"""


def test_torch_comes_with_the_first_tensors(finished: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(finished)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:2] == ["[]", "True"], done.stderr


def test_rows_are_scored_in_their_own_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Victims, "foreign", True)
    monkeypatch.setattr(
        Victims, "batch", lambda _, key: Batch(torch.tensor([[key]]), torch.ones(1))
    )
    victims: Any = Victims(SimpleNamespace())
    task = SimpleNamespace(modality="image", examples=lambda batch: batch)
    vars(victims).update(keys=[1, 3, 9], task=task)
    assert [victims.examples(key).inputs.item() for key in victims.keys] == [0.0, 0.25, 1.0]


def test_a_run_says_what_its_report_says(finished: Path) -> None:
    run = Run.open(finished)
    (said,) = run.findings.conclusions
    assert [row.verdict for row in headline(finished)] == [f"{said.word} ({said.grade})"]
    assert (said.defense, said.clients, said.strongest) == ("no defense", 3, "embedding rows")
    assert said.mean is not None
    assert said.mean > (said.null or 0.0)
    values = [row.value for row in run.scores if row.attack == "embedding_rows"]
    assert values
    scores, utility = run.frames()
    assert len(scores) == len(run.scores)
    assert set(utility.metric) == {point.metric for point in run.cells[0].utility}
    assert isinstance(scores, pd.DataFrame)
    assert (run.membership, run.forming, run.working) == ([], {}, False)


def test_a_cell_holds_observations_guesses_and_the_truth(finished: Path) -> None:
    (cell,) = Run.open(finished).cells
    assert cell.attacks == ("embedding_rows", "prior_only")
    keys = cell.captures.keys()
    guesses = cell.guesses("embedding_rows")
    assert [guess.record.key for guess in guesses] == keys
    assert [job.status for job in cell.jobs("embedding_rows")] == ["done"] * 3
    update = cell.captures.load(keys[0]).update()
    assert all(value.dtype == torch.float64 for value in update.values())
    known = guesses[0].examples
    assert known is not None
    assert set(known.all_words[0].split()) & set(cell.victims.examples(keys[0]).words[0].split())


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("findings.json", "findings"),
        ("scores.parquet", "scores"),
        ("provenance.json", "provenance"),
        ("jobs.sqlite", "ledger"),
    ],
)
def test_a_broken_file_is_named(name: str, read: str, copied: Path) -> None:
    data = bytearray((copied / name).read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    (copied / name).write_bytes(data)
    with pytest.raises(StoreError, match=name):
        getattr(Run.open(copied), read)


def test_what_is_not_there_says_how_to_make_it(copied: Path, tmp_path: Path) -> None:
    (copied / "findings.json").unlink()
    with pytest.raises(StoreError, match="not reported"):
        Run.open(copied).findings  # noqa: B018
    (copied / "scores.parquet").unlink()
    with pytest.raises(StoreError, match="nothing is scored"):
        Run.open(copied).scores  # noqa: B018
    with pytest.raises(ConfigError, match="no such folder"):
        Run.open(tmp_path / "nothing")
