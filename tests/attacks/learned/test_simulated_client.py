"""Gradients of many groups of examples, against the loop over them."""

from collections.abc import Callable

import pytest
import torch

from attacks.learned import simulated_client as module
from attacks.learned.simulated_client import Gradients, group_gradients, looped_gradients
from attacks.observed.replay import Replay, replay
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.store.capture import Observation
from fedsim.tasks import make_task
from fedsim.tasks.base import Task
from fedsim.tasks.weights import initial_weights
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


@pytest.fixture
def batch(pictures: Pictures) -> Batch:
    return pictures(6, 3, 5, 0, 3, 9, 1)


@pytest.fixture
def model(victim: Victim, batch: Batch) -> Replay:
    task, seen = victim(batch)
    return replay(seen, task, torch.device("cpu"))


def test_vmap_is_the_loop(model: Replay, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = looped_gradients(model, batch)
    for share in (1, 1000):  # all at once, and one by one
        monkeypatch.setattr(module, "_BYTES", module._BYTES // share)
        tensors = group_gradients(model, batch, 1)
        assert tensors.keys() == oracle.keys()
        for name, value in oracle.items():
            assert value.shape == (6, *model.parameters[name].shape)
            torch.testing.assert_close(tensors[name], value, rtol=1e-4, atol=1e-6)


def test_a_group_has_the_gradient_of_its_batch(model: Replay, batch: Batch) -> None:
    pairs = group_gradients(model, batch, 2)
    for i in range(3):
        expected = model.task.gradient(model.network, batch[2 * i : 2 * i + 2])
        for name, value in expected.items():
            torch.testing.assert_close(pairs[name][i], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "transformer3"])
def test_texts_of_any_length(name: str) -> None:
    rows = load_rows("sentences", "train[:5]", modality="text")
    task = make_task(TaskConfig(model=name, dataset="sentences"), rows)
    config = TaskConfig(model=name, dataset="sentences")
    network = task.model(initial_weights(task, config, 0))
    parameters: Tensors = {k: p for k, p in network.named_parameters() if k.endswith("bias")}
    model, batch = Replay(task, network, parameters), task.encode(rows)
    assert batch.mask is not None
    assert len(batch.mask.sum(1).unique()) > 1
    tensors = group_gradients(model, batch, 1)
    for i in range(len(batch)):
        expected = task.gradient(network, batch[i])  # padded
        for key in model.parameters:
            torch.testing.assert_close(tensors[key][i], expected[key], rtol=1e-3, atol=1e-6)


def text_model(name: str, frozen: str) -> tuple[Replay, Batch]:
    """A text model whose parameters named so are not sent, and texts of several lengths."""
    rows = load_rows("sentences", "train[:6]", modality="text")
    config = TaskConfig(model=name, dataset="sentences", max_length=24)
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    sent: Tensors = {k: p for k, p in network.named_parameters() if frozen not in k}
    return Replay(task, network, sent), task.encode(rows)


@pytest.mark.parametrize("size", [1, 3])
def test_one_pass_over_texts_is_the_loop(size: int) -> None:
    model, batch = text_model("tiny-bert", "word_embeddings")
    gradients = Gradients.of(model)
    assert gradients.factored is not None
    assert batch.mask is not None
    assert len(batch.mask.sum(1).unique()) > 1
    with torch.no_grad():  # as where features are made
        computed = gradients(batch, size)
    oracle = looped_gradients(model, batch, size)
    assert list(computed) == list(oracle)
    largest = max(float(value.abs().max()) for value in oracle.values())
    for name, value in oracle.items():
        torch.testing.assert_close(computed[name], value, rtol=1e-3, atol=1e-6 * largest)
    again = looped_gradients(model, batch, size)  # the model itself is left as it was
    assert all(torch.equal(again[name], value) for name, value in oracle.items())


@pytest.mark.parametrize(("name", "frozen"), [("tiny-bert", "none"), ("tiny-gpt2", "wte")])
def test_word_rows_and_language_models_are_looped_over(name: str, frozen: str) -> None:
    model, batch = text_model(name, frozen)
    gradients = Gradients.of(model)
    assert gradients.factored is None
    computed = gradients(batch, 2)
    for key, value in looped_gradients(model, batch, 2).items():
        torch.testing.assert_close(computed[key], value, rtol=1e-3, atol=1e-6)
