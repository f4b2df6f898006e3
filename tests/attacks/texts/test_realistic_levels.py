"""Where little is granted every attack runs, or is skipped for a reason that it gives."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, plan
from attacks.scheduling.ledger import Ledger
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.plan.levels import level_of
from fedsim.knowledge import FACTS
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.files import write_json
from tests.apps.cases import simulate
from tests.contract_cases import ATTACK_CASES, Cell

DATA: dict[Cell, tuple[str, str]] = {
    "image": ("lenet", "shapes"),
    "linear": ("mlp", "shapes"),
    "patches": ("vit", "shapes"),
    "normalised": ("resnet20", "shapes"),
    "text": ("tiny-bert", "sentences"),
    "language": ("tiny-gpt2", "sentences"),
}
KEY = CaptureKey(round=1, client=0)
SHAPE = re.compile(r"rank|span|batch_size = 1")
"""The words in which an attack says that a batch is too large for it, whatever is granted."""

Attacked = Callable[..., JobRecord]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cell], Path]:
    """The captures of a cell at L4, simulated once."""
    made: dict[Cell, Path] = {}

    def of(kind: Cell) -> Path:
        if kind not in made:
            model, dataset = DATA[kind]
            table: dict[str, Any] = {
                "name": "deployed",
                "level": "L4",
                "task": {"model": model, "dataset": dataset, "heldout_rows": 2, "max_length": 12},
                "auxiliary": {"split": "public", "rows": 8},
                "federation": {
                    "engine": "in-process",
                    "batch_size": 2,
                    "client_rows": 3,
                    "learning_rate": 0.01,
                },
            }
            config = Plan(name="deployed", experiments=(parse_experiment(table),))
            run = Run.create(config, tmp_path_factory.mktemp(kind) / "run")
            simulate(run)
            assert level_of(run.cells[0].config) == "L4"
            made[kind] = run.cells[0].captures.root
        return made[kind]

    return of


@pytest.fixture
def attacked(captures: Callable[[Cell], Path], tmp_path: Path) -> Attacked:
    """``attacked("lamp", "text", num_examples=6)``: the record of one job, facts granted on top."""

    def run(name: str, kind: Cell, **facts: Any) -> JobRecord:
        root = tmp_path / "cell" / "captures"
        shutil.copytree(captures(kind), root)
        store = CaptureStore(root)
        record = store.record(KEY)
        known = record.knowledge.model_copy(update=facts)
        path = store.tensors_path(KEY).with_suffix(".json")
        write_json(path, record.model_copy(update={"knowledge": known}))
        options = {"name": name, **ATTACK_CASES[name].options}
        specs = plan(root, tmp_path / "cell" / "guesses", name, options, 0, Demand(), round=1)
        with Ledger(tmp_path / "jobs.sqlite") as ledger:
            (made,) = run_serial(specs, ledger)
        return made

    return run


CASES = [(name, kind) for name, case in ATTACK_CASES.items() for kind in case.cells]


@pytest.mark.some(8)
@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{n}-{k}" for n, k in CASES])
def test_at_the_highest_level_an_attack_runs_or_names_what_it_lacks(
    name: str, kind: Cell, attacked: Attacked
) -> None:
    record = attacked(name, kind)
    assert record.status in {"done", "skipped"}, record.reason
    if record.status == "skipped":
        assert lacks(record.reason, {"auxiliary", "defense", "train_mode"}), record.reason


def lacks(reason: str, granted: set[str]) -> bool:
    """Whether a reason names a fact that is not granted, or the size of the batch."""
    missing = [fact for fact in FACTS if fact not in granted]
    return any(re.search(rf"\b{fact}\b", reason) for fact in missing) or bool(SHAPE.search(reason))


NEEDS_SIZE = {
    "dlg",
    "idlg",
    "closed_form",
    "inverting",
    "gi_gip",
    "bayes",
    "dlg_text",
    "tag",
    "lamp",
    "lti",
    "ridge",
}


@pytest.mark.parametrize("name", sorted(NEEDS_SIZE | {"statistics"}))
def test_the_size_of_the_cohort_is_named_where_it_is_missing(name: str, attacked: Attacked) -> None:
    record = attacked(name, ATTACK_CASES[name].cells[0])
    assert (record.status, "needs num_examples" in record.reason) == ("skipped", True)


STEPS = {"local_steps": 4, "learning_rate": 0.01, "optimizer": "sgd"}


@pytest.mark.parametrize("name", sorted(NEEDS_SIZE - {"closed_form"}))
def test_with_the_size_the_scale_is_asked_for(name: str, attacked: Attacked) -> None:
    kind = ATTACK_CASES[name].cells[0]
    record = attacked(name, kind, num_examples=6)
    assert record.status == "skipped"
    assert re.search(r"needs local_steps and learning_rate", record.reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NEEDS_SIZE - {"closed_form", "lti", "ridge"}))
def test_with_size_and_scale_an_attack_on_a_sum_runs(name: str, attacked: Attacked) -> None:
    record = attacked(name, ATTACK_CASES[name].cells[0], num_examples=6, **STEPS)
    assert record.status == "done", record.reason
