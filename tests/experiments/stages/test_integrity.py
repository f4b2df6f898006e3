"""A file of a simulation that was changed, added or lost is named before anything is attacked."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.checks.capture_check import examine
from experiments.pipeline import execute
from experiments.plan.folder import Run
from experiments.stages.utility import utility
from fedsim.errors import StoreError
from fedsim.records import JobRecord, UtilityRow
from fedsim.store.files import read_record
from fedsim.store.rows import read_rows, write_rows
from fedsim.store.truth import TruthStore
from tests.apps.cases import IMAGES, merge

FIRST, SECOND = "round-0001/client-0000.json", "round-0001/client-0001.json"
TRUTH = "truth/round-0001-client-0000.json"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from experiments.plan.config import Plan, parse_experiment

    changes = {"federation": {"rounds": 1}, "attacks": [{"name": "prior_only"}]}
    config = parse_experiment(merge(IMAGES, changes))
    root = tmp_path_factory.mktemp("runs") / "run"
    run = Run.create(Plan(name=config.name, experiments=(config,)), root)
    execute(run, ("simulate", "attack", "score"), quiet=True)
    return run


@pytest.fixture
def run(simulated: Run, tmp_path: Path) -> Run:
    shutil.copytree(simulated.root, tmp_path / "run")
    return Run.open(tmp_path / "run")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def digit(path: Path) -> None:
    path.write_text(re.sub(r"\d", lambda found: str(9 - int(found[0])), path.read_text(), count=1))


def swap(path: Path) -> None:
    other = path.with_name(path.name.replace("client-0000", "client-0001"))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def double(path: Path) -> None:
    shutil.copy(path, path.with_name("client-0009.json"))


Spoil = Callable[[Path], None]


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("captures/auxiliary.safetensors", flip, "the file is cut or altered"),
        ("captures/task.json", digit, "the file is cut or altered"),
        (f"captures/{FIRST}", digit, "the file is cut or altered"),
        (f"captures/{FIRST}", swap, "the file is cut or altered"),
        (f"captures/{FIRST}", Path.unlink, "the file is missing"),
        (f"captures/{FIRST}", double, "it was not there when the hashes were taken"),
        (TRUTH, digit, "the file is cut or altered"),
        (TRUTH, swap, "the file is cut or altered"),
        (TRUTH, Path.unlink, "the file is missing"),
    ],
)
def test_a_spoilt_file_is_named(name: str, spoil: Spoil, said: str, run: Run) -> None:
    path = run.cells[0].folder / name
    spoil(path)
    named = path.with_name("client-0009.json") if spoil is double else path
    match = f"^{re.escape(str(named))}: {said}"
    if name.startswith("captures"):
        with pytest.raises(StoreError, match=match):
            execute(run, ("attack",), quiet=True)
    with pytest.raises(StoreError, match=match):
        execute(run, ("score",), quiet=True)
    with pytest.raises(StoreError, match=match):
        examine(run)


def test_a_record_names_the_key_of_its_file(run: Run) -> None:
    swap(run.cells[0].folder / TRUTH)
    swap(run.cells[0].captures.root / FIRST)
    (key, *_) = run.cells[0].captures.keys()
    truth = TruthStore(run.cells[0].folder / "truth")
    for read in (run.cells[0].captures.record, truth.record, lambda _: truth.clients()):
        with pytest.raises(StoreError, match="holds the record of round-0001-client-0001"):
            read(key)


def test_an_altered_guess_is_not_scored_and_is_made_again(run: Run) -> None:
    path = run.cells[0].folder / "guesses" / "prior_only" / "round-0001-client-0000.json"
    whole = path.read_text()
    for found in re.finditer(r"\d", whole):
        digit = str(9 - int(found[0]))
        altered = whole[: found.start()] + digit + whole[found.end() :]
        with contextlib.suppress(json.JSONDecodeError):  # a number that begins with 0 is none
            if json.loads(altered) == json.loads(whole):  # a float's last digit may tell nothing
                continue
        with pytest.raises(ValidationError):
            JobRecord.model_validate_json(altered)
        path.write_text(altered)
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))}: not a valid JobRecord"):
        execute(run, ("score",), quiet=True)
    flip(path.with_suffix(".safetensors"))
    execute(run, ("attack", "score"), quiet=True)
    assert read_record(path, JobRecord).status == "done"


def test_a_table_is_a_whole_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "utility.parquet"
    rows = list(utility(run.cells[0]))
    write_rows(path, UtilityRow, rows)
    assert read_rows(path, UtilityRow) == rows
    data = bytearray(path.read_bytes())
    data[data.index(b"accuracy") + 3] ^= 1  # in a page, where its own format would take it
    path.write_bytes(data)
    with pytest.raises(StoreError, match="not a table of UtilityRow"):
        read_rows(path, UtilityRow)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="the file is missing"):
        read_rows(path, UtilityRow)


def test_a_report_needs_its_coverage(run: Run) -> None:
    (run.root / "coverage.parquet").unlink()
    with pytest.raises(StoreError, match=r"coverage\.parquet: the file is missing"):
        execute(run, ("report",), quiet=True)
