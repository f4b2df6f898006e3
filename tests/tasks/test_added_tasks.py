"""A task that another package adds by entry point: found, run, saved and loaded."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from experiments.pipeline import execute
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError, StoreError
from fedsim.tasks import initial_weights, load_task, make_task, save_task, task_kind
from tests.apps.cases import IMAGES, Make


def config(kind: str, model: str = "tiny-bert", dataset: str = "sentences") -> TaskConfig:
    return TaskConfig(kind=kind, model=model, dataset=dataset)


@pytest.mark.usefixtures("fakes")
def test_an_added_task_is_what_clients_train_and_attacks_replay(make_run: Make) -> None:
    federation = {"rounds": 1, "clients": 2, "batch_size": 1}
    run = make_run(IMAGES, task={"kind": "fake_smoothed"}, federation=federation)
    outcome = execute(run, ("simulate", "attack", "score", "report"), quiet=True)
    assert outcome.statuses == {"done": 4}

    (cell,) = run.cells
    key = cell.captures.keys()[0]
    seen, truth, task = cell.captures.load(key), cell.truth.load(key), load_task(cell.captures.root)
    network = task.model(seen.sent)
    smoothed = F.cross_entropy(network(truth.inputs), truth.labels, label_smoothing=0.2)
    gradient = torch.autograd.grad(smoothed, list(network.parameters()))
    for own, received in zip(gradient, seen.received.values(), strict=True):
        torch.testing.assert_close(own, received)


@pytest.mark.usefixtures("fakes")
def test_an_added_text_task_survives_the_disk_and_is_of_its_parents_kind(tmp_path: Path) -> None:
    rows = load_rows("sentences", "train", modality="text").take(range(2))
    made = make_task(config("fake_backwards"), rows)
    save_task(made, tmp_path)
    task = load_task(tmp_path)
    assert type(task) is type(made)
    assert task_kind(config("fake_backwards")) == task.spec.kind == "text-classification"
    assert initial_weights(task, config("fake_backwards"), 0).keys() >= {"classifier.weight"}
    plain = make_task(config("text-classification"), rows)
    assert task.encode(rows).inputs.tolist() != plain.encode(rows).inputs.tolist()


def test_without_the_package_its_task_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^task.kind: 'fake_backwards' is not known. Known: auto"
    ):
        task_kind(config("fake_backwards"))
    rows = load_rows("sentences", "train", modality="text").take(range(2))
    save_task(make_task(config("auto"), rows), tmp_path)
    path = tmp_path / "task.json"
    changed = {"added": "fake_backwards", "seal": None}
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(StoreError, match=r"task.json: the task 'fake_backwards' is not installed"):
        load_task(tmp_path)


@pytest.mark.usefixtures("fakes")
def test_an_added_task_has_to_fit_the_model_and_to_derive_from_a_known_one() -> None:
    with pytest.raises(ConfigError, match=r"^task.kind: 'lenet', a built-in image model, does not"):
        task_kind(config("fake_backwards", "lenet", "shapes"))
    with pytest.raises(ConfigError, match=r"^task.kind: 'fake_stray' does not derive from a task"):
        task_kind(config("fake_stray"))
    with pytest.raises(
        ConfigError, match=r"^task.kind: 'fake_backward' .* Did you mean 'fake_back"
    ):
        task_kind(config("fake_backward"))
