import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.config.cell import TaskConfig
from fedsim.seeds import numpy_generator
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, load_state, state
from fedsim.tasks.classification import matthews
from fedsim.types import Batch, Rows

TEXTS = Rows(
    ("The boat left the harbour at dawn.", "Timo owes us 30 crowns.", "Rain."),
    torch.tensor([0, 1, 1]),
    (0, 1, 2),
)
IMAGES = Rows(
    torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 1, 1]),
    (0, 1, 2),
)
CASES = [
    ("lenet", "image-classification"),
    ("tiny-bert", "text-classification"),
    ("tiny-gpt2", "language-modelling"),
    ("tiny-gpt2", "text-classification"),
    ("tiny-bert", "masked-language-modelling"),
]
TEXT_CASES = CASES[1:]


def learned(model: str, kind: str) -> tuple[Task, nn.Module, Batch]:
    config = TaskConfig.model_validate({"model": model, "dataset": "here", "kind": kind})
    rows = IMAGES if kind.startswith("image") else TEXTS
    task = make_task(config, rows)
    return task, task.model(initial_weights(task, config, 0)), task.encode(rows)


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_gradient_of_the_functional_loss_is_autograds(model: str, kind: str) -> None:
    task, network, batch = learned(model, kind)
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    functional = torch.func.grad(lambda p: task.functional_loss(network, p, batch))(parameters)
    task.loss(network, batch).backward()
    for name, parameter in network.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(functional[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_gradient_matching_can_be_differentiated(model: str, kind: str) -> None:
    task, network, batch = learned(model, kind)
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    weight = next(name for name in parameters if parameters[name].dim() > 1)

    def mismatch(value: Tensor) -> Tensor:
        gradient = torch.func.grad(lambda p: task.functional_loss(network, p, batch))
        values = gradient(parameters | {weight: value}).values()
        return torch.stack([g.square().sum() for g in values]).sum()

    assert torch.func.grad(mismatch)(parameters[weight]).isfinite().all()


@pytest.mark.parametrize(("model", "kind"), TEXT_CASES)
def test_padding_does_not_change_a_gradient(model: str, kind: str) -> None:
    task, network, batch = learned(model, kind)
    assert batch.mask is not None
    extra = (0, 5)
    pad = task.spec.pad_id
    assert pad is not None
    labels = F.pad(batch.labels, extra, value=-100) if batch.labels.dim() == 2 else batch.labels
    longer = Batch(F.pad(batch.inputs, extra, value=pad), labels, F.pad(batch.mask, extra))
    short, long = task.gradient(network, batch), task.gradient(network, longer)
    for name, value in short.items():
        torch.testing.assert_close(long[name], value, rtol=0, atol=1e-6)
    assert max(value.abs().max() for value in short.values()) > 1e-3


@pytest.mark.parametrize(("model", "kind"), [CASES[0], CASES[1]])
def test_soft_labels_at_a_corner_are_hard_labels(model: str, kind: str) -> None:
    task, network, batch = learned(model, kind)
    soft = Batch(batch.inputs, F.one_hot(batch.labels, 2).float(), batch.mask)
    torch.testing.assert_close(task.loss(network, soft), task.loss(network, batch))


def test_language_loss_is_the_librarys_own() -> None:
    task, network, batch = learned("tiny-gpt2", "language-modelling")
    output = network(input_ids=batch.inputs, attention_mask=batch.mask, labels=batch.labels)
    torch.testing.assert_close(task.loss(network, batch), output.loss)


def test_tied_head_crosses_once_and_stays_tied() -> None:
    task, network, _ = learned("tiny-gpt2", "language-modelling")
    tensors = state(network)
    assert "lm_head.weight" not in tensors
    assert "lm_head.weight" in network.state_dict()
    tensors["transformer.wte.weight"] += 1
    load_state(network, tensors)
    assert network.lm_head.weight is network.transformer.wte.weight  # type: ignore[union-attr]
    assert torch.equal(network.lm_head.weight, tensors["transformer.wte.weight"])  # type: ignore[arg-type, union-attr]
    assert len(tensors) == len(list(task.build().named_parameters()))


def test_batch_statistics_cross_the_wire() -> None:
    config = TaskConfig.model_validate({"model": "resnet20", "dataset": "here"})
    tensors = initial_weights(make_task(config, IMAGES), config, 0)
    assert tensors["bn1.running_var"].tolist() == [1.0] * 16
    assert tensors["bn1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_utility_is_that_of_all_examples_at_once(model: str, kind: str) -> None:
    task, network, batch = learned(model, kind)
    network.train()
    whole = task.evaluate(network, [batch])
    parts = task.evaluate(network, [batch[:2], batch[2]])
    assert network.training
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole["loss"] == pytest.approx(task.loss(network.eval(), batch).item(), rel=1e-5)
    if task.spec.num_classes == 0:
        assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]))
    else:
        assert whole["accuracy"] in (0.0, 1 / 3, 2 / 3, 1.0)
        assert set(whole) == {"loss", "accuracy", "mcc"}


@pytest.mark.parametrize(
    ("guesses", "labels", "value"),
    [
        ([0, 1, 1, 0], [0, 1, 1, 0], 1.0),
        ([1, 0, 0, 1], [0, 1, 1, 0], -1.0),
        ([1, 1, 1, 1], [0, 1, 1, 0], 0.0),
        # 2 true positives, 1 false positive, 1 false negative, 0 true negatives.
        ([1, 1, 1, 0], [1, 1, 0, 1], (2 * 0 - 1 * 1) / math.sqrt(3 * 3 * 1 * 1)),
    ],
)
def test_matthews_closed_forms(guesses: list[int], labels: list[int], value: float) -> None:
    assert matthews(torch.tensor(guesses), torch.tensor(labels)) == pytest.approx(value)


def test_matthews_is_the_correlation_of_the_indicators() -> None:
    rng = numpy_generator(0)
    labels = torch.tensor(rng.integers(0, 2, 200))
    guesses = torch.where(torch.tensor(rng.random(200)) < 0.7, labels, 1 - labels)
    expected = torch.corrcoef(torch.stack([guesses, labels]).double())[0, 1].item()
    assert matthews(guesses, labels) == pytest.approx(expected)
