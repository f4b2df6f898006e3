"""What everything that an experiment can name keeps to; one table row for each entry of a dict."""

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch

from attacks import ATTACKS
from experiments.wording.names import title
from fedsim.build import build, options_of
from fedsim.cell import TaskConfig
from fedsim.data import DATASETS
from fedsim.data.rows import load_rows
from fedsim.defenses import DEFENSES
from fedsim.metrics import METRICS
from fedsim.models import IMAGE_MODELS, MODELS
from fedsim.tasks import TASKS, load_task, make_task, save_task

Modality = Literal["image", "text"]


Cell = Literal["image", "linear", "patches", "normalised", "text", "language"]
"""Classifiers of images by convolutions, linear layers, patches and with batch statistics, of
texts, a language model."""


class AttackCase(NamedTuple):
    """Options that make it quick, what it reconstructs, and whether its guess depends on a seed."""

    options: dict[str, object]
    cells: tuple[Cell, ...]
    draws: bool


ATTACK_CASES = {
    "dlg": AttackCase({"steps": 1, "restarts": 1}, ("image",), True),
    "idlg": AttackCase({"steps": 1, "restarts": 1}, ("image",), True),
    "closed_form": AttackCase({}, ("image",), False),
    "patch_rows": AttackCase({}, ("patches",), False),
    "inverting": AttackCase({"steps": 60}, ("image",), True),
    "gi_gip": AttackCase(
        {"latent_steps": 2, "weight_steps": 2, "generator_steps": 2}, ("image",), True
    ),
    "bayes": AttackCase({"steps": 20}, ("image",), True),
    "dlg_text": AttackCase({"steps": 2}, ("text", "language"), True),
    "tag": AttackCase({"steps": 2}, ("text", "language"), True),
    "lamp": AttackCase(
        {"steps": 2, "starts": 2, "proposals": 4, "alpha_lm": 0.0}, ("text", "language"), True
    ),
    "film": AttackCase({"phrase_steps": 1, "token_steps": 1, "beams": 2}, ("language",), True),
    "span": AttackCase({}, ("text", "language"), False),
    "april": AttackCase({}, ("text", "language"), False),
    "embedding_rows": AttackCase({}, ("text", "language"), False),
    "lti": AttackCase(
        {"epochs": 1, "width": 8, "channels": 4, "bins": 0.02}, ("image", "text", "language"), True
    ),
    "ridge": AttackCase({}, ("image", "normalised"), True),
    "statistics": AttackCase({}, ("normalised",), True),
    "spear": AttackCase({}, ("linear",), False),
    "ratio": AttackCase({}, ("linear",), False),
    "properties": AttackCase({}, (), False),  # waits for all rounds, and guesses no rows
    "membership": AttackCase({}, (), False),  # without candidates there is nothing to infer
    "prior_only": AttackCase({}, ("image", "text", "language"), False),
}

# The options without a default; dp_sgd and dp_client ask for one of two more.
DEFENSE_CASES: dict[str, dict[str, object]] = {
    "none": {},
    "gaussian_noise": {"std": 0.1},
    "clip": {"norm": 1.0},
    "dp_sgd": {"clip": 1.0, "noise_multiplier": 0.5},
    "dp_client": {"clip": 1.0, "noise_multiplier": 0.5},
    "dp_server": {"clip": 1.0, "noise_multiplier": 0.5},
    "local_dp": {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5},
    "error_feedback": {},
    "prune": {"fraction": 0.5},
    "percentile_privacy": {},
    "svt_privacy": {},
    "quantize": {"kind": "qsgd"},
    "sign": {},
    "dropout": {"p": 0.5},
    "freeze_embeddings": {},
    "soteria": {},
    "censor": {},
    "pfgd": {},
    "ats": {},
    "ffa_lora": {},
}


class MetricCase(NamedTuple):
    """Its unit, what the attacker wants, and what it applies to."""

    unit: str
    wants: Literal["higher", "lower"]
    modality: Modality | Literal["any"]


METRIC_CASES = {
    "mse": MetricCase("squared pixel", "lower", "image"),
    "psnr": MetricCase("dB", "higher", "image"),
    "ssim": MetricCase("1", "higher", "image"),
    "lpips": MetricCase("1", "lower", "image"),
    "label_accuracy": MetricCase("1", "higher", "any"),
    "rouge1": MetricCase("1", "higher", "text"),
    "rouge2": MetricCase("1", "higher", "text"),
    "rougeL": MetricCase("1", "higher", "text"),
    "rouge1_special": MetricCase("1", "higher", "text"),
    "rouge2_special": MetricCase("1", "higher", "text"),
    "rougeL_special": MetricCase("1", "higher", "text"),
    "token_accuracy": MetricCase("1", "higher", "text"),
    "token_precision": MetricCase("1", "higher", "text"),
    "batch_token_precision": MetricCase("1", "higher", "text"),
    "batch_token_recall": MetricCase("1", "higher", "text"),
    "padded_token_accuracy": MetricCase("1", "higher", "text"),
    "token_recall": MetricCase("1", "higher", "text"),
    "exact_match": MetricCase("1", "higher", "text"),
    "bleu": MetricCase("1", "higher", "text"),
    "nerr": MetricCase("1", "higher", "text"),
    "nerr_rules": MetricCase("1", "higher", "text"),
    "rouge1_best": MetricCase("1", "higher", "text"),
    "rouge2_best": MetricCase("1", "higher", "text"),
    "rougeL_best": MetricCase("1", "higher", "text"),
    "nerr_best": MetricCase("1", "higher", "text"),
    "nerr_rules_best": MetricCase("1", "higher", "text"),
    "sentence_precision": MetricCase("1", "higher", "text"),
    "sentence_recall": MetricCase("1", "higher", "text"),
}

DATASET_CASES: dict[str, Modality] = {"sentences": "text", "shapes": "image"}

# Model -> a data set and the task that `auto` stands for.
MODEL_CASES = {
    "lenet": ("shapes", "image-classification"),
    "resnet20": ("shapes", "image-classification"),
    "mlp": ("shapes", "image-classification"),
    "vit": ("shapes", "image-classification"),
    "convnext": ("shapes", "image-classification"),
    "resnet20-group-norm": ("shapes", "image-classification"),
    "resnet20-norm-free": ("shapes", "image-classification"),
    "preact-resnet20": ("shapes", "image-classification"),
    "tiny-bert": ("sentences", "text-classification"),
    "tiny-gpt2": ("sentences", "language-modelling"),
    "transformer3": ("sentences", "language-modelling"),
}

TASK_CASES = {
    "image-classification": "lenet",
    "text-classification": "tiny-bert",
    "language-modelling": "tiny-gpt2",
    "masked-language-modelling": "tiny-bert",
}

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
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(built, fields[0].name if fields else "anything", 1)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_what_the_table_says(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name
    assert (metric.unit, metric.attacker_wants, metric.modality) == METRIC_CASES[name]
    assert metric() == metric()
    assert name in {"lpips", "nerr", "nerr_best"} or metric().available() == ""


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
