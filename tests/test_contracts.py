"""What everything that an experiment can name keeps to; one table row for each entry of a dict."""

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks import ATTACKS
from experiments.wording.names import title
from fedsim.config.build import build, changed_options, options_of
from fedsim.config.cell import TaskConfig
from fedsim.data import DATASETS
from fedsim.data.rows import load_rows
from fedsim.defenses import DEFENSES
from fedsim.metrics import METRICS
from fedsim.models import IMAGE_MODELS, MODELS
from fedsim.tasks import TASKS, load_task, make_task, save_task
from tests.contract_cases import (
    ATTACK_CASES,
    DATASET_CASES,
    DEFENSE_CASES,
    METRIC_CASES,
    MODEL_CASES,
    TASK_CASES,
    Modality,
)

DICTS: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("attacks", ATTACKS, ATTACK_CASES),
    ("defenses", DEFENSES, DEFENSE_CASES),
    ("metrics", METRICS, METRIC_CASES),
    ("models", MODELS, MODEL_CASES),
    ("datasets", DATASETS, DATASET_CASES),
    ("tasks", TASKS, TASK_CASES),
]


@pytest.mark.parametrize(("kind", "known", "cases"), DICTS, ids=[kind for kind, *_ in DICTS])
def test_every_name_has_a_case_and_every_case_a_name(
    kind: str, known: Mapping[str, Any], cases: Mapping[str, Any]
) -> None:
    assert known.keys() == cases.keys(), f"give the new one of {kind} a row in this file"


CLASSES: list[tuple[str, type]] = [
    (name, cls) for _, known, _ in DICTS for name, cls in known.items() if isinstance(cls, type)
]


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=[name for name, _ in CLASSES])
def test_a_class_says_what_it_is(name: str, cls: type) -> None:
    own = vars(cls).get("__doc__") or ""
    said = " ".join(inspect.cleandoc(own).split("\n\n")[0].split())
    assert not own.startswith(f"{cls.__name__}("), "the docstring that dataclasses make up"
    assert said.endswith("."), said
    assert len(said.split()) > 1, said


TITLED = [(name, cls) for known in (ATTACKS, DEFENSES, METRICS) for name, cls in known.items()]


@pytest.mark.parametrize(("name", "cls"), TITLED, ids=[name for name, _ in TITLED])
def test_a_title_is_the_one_of_the_class_alone(name: str, cls: type[Any]) -> None:
    own = vars(cls).get("title", "")
    assert title(name) == (own or name.replace("_", " "))
    assert [title(other) for other, _ in TITLED].count(title(name)) == 1
    assert "title" not in {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("name", [*ATTACKS, *DEFENSES])
def test_attacks_and_defenses_name_their_paper(name: str) -> None:
    cls: type = {**ATTACKS, **DEFENSES}[name]
    said = [inspect.getdoc(parent) or "" for parent in cls.__mro__[:2]]
    said.append(inspect.getdoc(inspect.getmodule(cls)) or "")
    assert name in {"none", "prior_only"} or re.search(r"\b(19|20)\d\d\b", " ".join(said))


OPTIONS: list[tuple[str, Mapping[str, type], dict[str, object]]] = [
    *((name, ATTACKS, {}) for name in ATTACKS),
    *((name, ATTACKS, case.options) for name, case in ATTACK_CASES.items() if case.options),
    *((name, DEFENSES, options) for name, options in DEFENSE_CASES.items()),
    *((name, METRICS, {}) for name in METRICS),
]


@pytest.mark.parametrize(
    ("name", "known", "options"), OPTIONS, ids=[f"{n}-{len(o)}" for n, _, o in OPTIONS]
)
def test_options_are_frozen_have_defaults_and_come_back(
    name: str, known: Mapping[str, type], options: dict[str, object]
) -> None:
    built: Any = build(known, {"name": name, **options}, "here")
    fields = dataclasses.fields(built)
    if known is not ATTACKS:
        bare = {f.name for f in fields if {f.default, f.default_factory} == {dataclasses.MISSING}}
        either = {"noise_multiplier"} if name in {"dp_sgd", "dp_client"} else set()
        assert bare == options.keys() - either
    table = options_of(built)
    assert list(table) == [field.name for field in fields]
    assert options.items() <= table.items()
    assert build(known, {"name": name, **json.loads(json.dumps(table))}, "here") == built
    changes = changed_options(built)
    assert build(known, {"name": name, **json.loads(json.dumps(changes))}, "here") == built
    assert changes.items() <= table.items()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(built, fields[0].name if fields else "anything", 1)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_what_the_table_says(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name
    assert (metric.unit, metric.attacker_wants, metric.modality) == METRIC_CASES[name]
    assert metric() == metric()
    assert name in {"lpips", "lpips_vgg"} or metric().available() == ""


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_has_rows_to_own_to_publish_and_to_test(name: str) -> None:
    modality = DATASET_CASES[name]
    for split in ("train", "test", "public"):
        rows = load_rows(name, f"{split}[:3]", modality=modality)
        assert len(rows) == 3
        assert isinstance(rows.inputs, tuple) == (modality == "text")
    assert DATASETS[name].modality == modality


@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_from_a_built_in_data_set(name: str) -> None:
    dataset, kind = MODEL_CASES[name]
    config = TaskConfig(model=name, dataset=dataset)
    modality: Modality = "image" if name in IMAGE_MODELS else "text"
    rows = load_rows(dataset, "train[:2]", modality=modality)
    task = make_task(config, rows)
    assert task.spec.kind == kind
    loss = task.loss(task.build(), task.encode(rows))
    assert loss.dim() == 0
    assert bool(loss.isfinite())


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_frozen_and_comes_back(name: str, tmp_path: Path) -> None:
    model = TASK_CASES[name]
    dataset, _ = MODEL_CASES[model]
    modality: Modality = "image" if model in IMAGE_MODELS else "text"
    rows = load_rows(dataset, "train[:2]", modality=modality)
    config = TaskConfig.model_validate({"model": model, "dataset": dataset, "kind": name})
    task = make_task(config, rows)
    assert type(task) is TASKS[name]
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.spec = task.spec  # type: ignore[misc]
    save_task(task, tmp_path)
    again = load_task(tmp_path)
    assert again == task
    assert torch.equal(again.encode(rows).inputs, task.encode(rows).inputs)
