"""A client trains on the device of its cell, as exactly as asked, or not at all."""

import pytest
import torch

from clients.app import load_population
from clients.train import LocalTrainer
from fedsim.errors import ConfigError
from fedsim.tasks import initial_weights
from fedsim.wire import TrainRequest
from tests.apps.cases import IMAGES, Make


def test_a_client_without_its_gpu_does_not_train_on_the_cpu(make_run: Make) -> None:
    run = make_run(IMAGES, federation={"client_gpus": 0.5})
    with pytest.raises(
        ConfigError, match=r"^federation\.client_gpus: 0\.5 was asked for, and torch"
    ):
        load_population(str(run.cells[0].folder))


def test_a_client_multiplies_in_float32(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_run(IMAGES).cells[0]
    population = load_population(str(cell.folder))
    sent = initial_weights(population.trainer.task, cell.config.task, 0)
    seen: list[bool] = []
    train = LocalTrainer.work

    def note(self: LocalTrainer, *given: object) -> object:
        seen.append(torch.backends.cudnn.allow_tf32)
        return train(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalTrainer, "work", note)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    population.work(TrainRequest(1, 0, sent))
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32
