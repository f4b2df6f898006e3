from pathlib import Path

import pytest
import torch

from fedsim.config.cell import TaskConfig
from fedsim.errors import ConfigError
from fedsim.models import MODELS
from fedsim.store.files import write_json
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Rows
from tests.tasks.cases import IMAGES, TEXTS, capture


def config(model: str, weights: str = "auto") -> TaskConfig:
    return TaskConfig.model_validate({"model": model, "dataset": "here", "weights": weights})


def task_of(model: str, rows: Rows = IMAGES) -> Task:
    texts = model.startswith(("tiny", "transformer3"))
    return make_task(config(model), TEXTS if texts else rows)


@pytest.mark.some(3)
@pytest.mark.parametrize("model", list(MODELS))
def test_random_weights_depend_on_the_seed_alone(model: str) -> None:
    task = task_of(model)
    first = initial_weights(task, config(model), 3)
    torch.rand(7)
    again = initial_weights(task, config(model, "random"), 3)
    other = initial_weights(task, config(model), 4)
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_model_of_an_earlier_round(tmp_path: Path) -> None:
    task = task_of("resnet20")
    sent = initial_weights(task, config("resnet20"), 1)
    sent["bn1.num_batches_tracked"] += 5
    capture(tmp_path, 2, sent)
    tensors = initial_weights(task, config("resnet20", f"{tmp_path}@2"), 0)
    assert list(tensors) == list(sent)
    assert all(torch.equal(tensors[name], sent[name]) for name in sent)


def test_cell_of_a_sweep_by_its_value(tmp_path: Path) -> None:
    task, sent = task_of("lenet"), {}
    for rate in (0.1, 0.25):
        cell = tmp_path / f"sweep.none.{rate}"
        sent[rate] = initial_weights(task, config("lenet"), int(100 * rate))
        capture(cell, 1, sent[rate])
        write_json(cell / "cell.json", {"federation": {"learning_rate": rate}})
    swept = f"{tmp_path}/federation.learning_rate"
    tensors = initial_weights(task, config("lenet", f"{swept}=0.25@1"), 0)
    assert all(torch.equal(tensors[name], sent[0.25][name]) for name in tensors)
    with pytest.raises(ConfigError) as error:
        initial_weights(task, config("lenet", f"{swept}=0.5@1"), 0)
    assert str(error.value) == (
        f"task.weights: the cells of {str(tmp_path)!r} have federation.learning_rate = 0.1, 0.25. "
        "Write <run>/<option>=<value> with a value that one cell has, or name the folder of a cell."
    )


def test_round_that_was_not_captured(tmp_path: Path) -> None:
    task = task_of("lenet")
    for number in (1, 12):
        capture(tmp_path, number, initial_weights(task, config("lenet"), 0))
    with pytest.raises(ConfigError) as error:
        initial_weights(task, config("lenet", f"{tmp_path}@7"), 0)
    assert str(error.value) == (
        f"task.weights: {str(tmp_path)!r} holds no capture of round 7. "
        "Choose one of its rounds: 1, 12."
    )


def test_folder_that_is_no_cell(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        initial_weights(task_of("lenet"), config("lenet", f"{tmp_path}/x@1"), 0)
    assert str(error.value) == (
        f"task.weights: {str(tmp_path / 'x')!r} holds no captures. "
        "Name the folder of a simulated cell, <run>/<cell>, of a run with one cell, or "
        "<run>/<option>=<value> where one cell has that value."
    )


@pytest.mark.parametrize(
    ("model", "classes", "difference"),
    [
        ("lenet", 10, "'fc.weight' has shape (10, 48) in {} and (2, 48) in 'lenet'"),
        ("mlp", 2, "'body.0.weight' has shape none in {} and (12, 3, 5, 5) in 'lenet'"),
    ],
)
def test_weights_of_another_architecture(
    model: str, classes: int, difference: str, tmp_path: Path
) -> None:
    rows = Rows(IMAGES.inputs, torch.tensor([0, classes - 1]), (0, 1))
    capture(tmp_path, 1, initial_weights(task_of(model, rows), config(model), 0))
    with pytest.raises(ConfigError) as error:
        initial_weights(task_of("lenet"), config("lenet", f"{tmp_path}@1"), 0)
    assert difference.format(repr(str(tmp_path))) in str(error.value)
    assert str(error.value).endswith("Use the model and the data set of that run.")


@pytest.mark.parametrize("weights", ["best", "@", "run/cell", "run/cell@last", "run/cell@-1"])
def test_unknown_source(weights: str) -> None:
    with pytest.raises(ConfigError) as error:
        initial_weights(task_of("lenet"), config("lenet", weights), 0)
    assert str(error.value) == (
        f"task.weights: {weights!r} is not known. "
        "Write 'auto', 'random', 'pretrained' or '<cell folder>@<round>'."
    )


def test_built_in_has_no_pretrained_weights() -> None:
    with pytest.raises(ConfigError) as error:
        initial_weights(task_of("tiny-bert"), config("tiny-bert", "pretrained"), 0)
    assert str(error.value) == (
        "task.weights: there are no pretrained weights for the built-in 'tiny-bert'. Set "
        "'random', or '<cell folder>@<round>' for a model that an earlier run trained."
    )
