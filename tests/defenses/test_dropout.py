"""Dropout as a defense: on in the client, with masks that the seed fixes."""

from typing import Any

import pytest
import torch
from torch import nn

from clients.train import LocalTrainer
from experiments.plan.rehearsal import rehearse
from fedsim.defenses import build_chain
from fedsim.defenses.dropout import Dropout
from fedsim.errors import ConfigError
from fedsim.federation import FederationConfig
from fedsim.types import Tensors
from tests.apps.cases import IMAGES, Make
from tests.defenses.cases import text_task


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
def test_every_dropout_layer_gets_the_probability_and_works(model: str) -> None:
    task, sent, batch = text_task(model)
    network = task.model(sent)
    layers = [part for part in network.modules() if isinstance(part, nn.Dropout)]
    assert not any(layer.training for layer in layers)
    Dropout(p=0.25).on_model(network)
    assert {(layer.p, layer.training) for layer in layers} == {(0.25, True)}
    torch.manual_seed(0)
    first, second = (task.loss(network, batch) for _ in range(2))
    assert first != second

    def losses(p: float) -> torch.Tensor:
        Dropout(p=p).on_model(network)
        return torch.stack([task.loss(network, batch).detach() for _ in range(20)])

    assert losses(0.5).std() > 3 * losses(0.01).std()


def test_attention_drops_too() -> None:
    task, sent, batch = text_task("tiny-bert")
    network = task.model(sent)
    Dropout(p=0.5).on_model(network)
    for name, part in network.named_modules():
        if isinstance(part, nn.Dropout) and not name.endswith("attention.self.dropout"):
            part.p = 0.0
    torch.manual_seed(0)
    assert task.loss(network, batch) != task.loss(network, batch)


def test_masks_depend_on_the_seed_and_leave_the_declared_mode_alone() -> None:
    task, sent, batch = text_task("tiny-bert")

    def reply(seed: int = 0, **table: Any) -> Tensors:
        chain = build_chain([table] if table else [], "defense")
        trainer = LocalTrainer(task, FederationConfig(), chain, seed, torch.device("cpu"))
        return trainer.defend(sent, batch, ((0, 1, 2),), 1, 0).tensors

    name = "bert.encoder.layer.0.output.dense.weight"
    first = reply(name="dropout", p=0.1)[name]
    assert torch.equal(first, reply(name="dropout", p=0.1)[name])
    for other in (reply(seed=1, name="dropout", p=0.1), reply(), reply(name="dropout", p=0.2)):
        assert not torch.equal(first, other[name])


def test_a_model_without_dropout_is_refused_before_anything_is_trained(make_run: Make) -> None:
    run = make_run(IMAGES, defenses=[{"name": "dropout", "p": 0.1}])
    with pytest.raises(ConfigError) as caught:
        rehearse(run.cells)
    assert str(caught.value) == (
        "dropout: LeNet has no dropout layer. Choose a model with dropout, such as BERT or "
        "GPT-2, or leave this defense out."
    )
