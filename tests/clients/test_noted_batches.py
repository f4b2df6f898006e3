"""Any batch that a client trains on is noted, as its network takes it."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from clients.noted_batches import NotedBatches, batch_of, described
from clients.truth_mod import notices, truth_mod


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


class Picture(Tensor):
    """A subclass, as ``torchvision.tv_tensors`` has."""


@dataclass
class Pair:
    x: Tensor
    y: Tensor


Named = namedtuple("Named", ["x", "y"])  # as old loaders have it
CLASSES = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize(
    ("raw", "inputs", "labels"),
    [
        ((numbers(4, 3, 8, 8), CLASSES), (4, 3, 8, 8), CLASSES),
        ([numbers(4, 14), CLASSES], (4, 14), CLASSES),
        ((numbers(4, 14), numbers(4, 1)), (4, 14), numbers(4, 1)),
        ((numbers(4, 14), numbers(4)), (4, 14), numbers(4).view(4, 1)),
        ((numbers(4, 6, 50), CLASSES.int()), (4, 6, 50), CLASSES),
        ((numbers(4, 3, 8, 8), numbers(4, 5)), (4, 3, 8, 8), numbers(4, 5)),
        ((numbers(4, 3, 8, 8).as_subclass(Picture), CLASSES), (4, 3, 8, 8), CLASSES),
        ({"image": numbers(4, 1, 8, 8), "label": CLASSES}, (4, 1, 8, 8), CLASSES),
        ({"id": torch.arange(4), "x": numbers(4, 9), "y": CLASSES}, (4, 9), CLASSES),
        (({"x": numbers(4, 9)}, CLASSES), (4, 9), CLASSES),
        (Pair(numbers(4, 9), CLASSES), (4, 9), CLASSES),
        (Named(numbers(4, 9), CLASSES), (4, 9), CLASSES),
        (numbers(4, 9), (4, 9), torch.full((4,), -1)),
        ([numbers(4, 1, 8, 8)], (4, 1, 8, 8), torch.full((4,), -1)),
        ((numbers(4, 9).double(), CLASSES > 0), (4, 9), (CLASSES > 0).long()),
        ((torch.ones(4, 7).long(), CLASSES), (4, 7), CLASSES),
    ],
)
def test_batches_of_every_usual_form_are_noted(
    raw: object, inputs: tuple[int, ...], labels: Tensor
) -> None:
    batch = batch_of(raw)
    assert batch is not None
    assert type(batch.inputs) is Tensor
    assert tuple(batch.inputs.shape) == inputs
    assert torch.equal(batch.labels, labels)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (torch.arange(4), "int64 (4,)"),
        ({"a": torch.arange(4), "b": numbers(2)}, "a int64 (4,), b float32 (2,)"),
        (["x", "y"], "a list without tensors"),
        (object(), "a object without tensors"),
    ],
)
def test_what_is_no_batch_is_described(raw: object, text: str) -> None:
    assert batch_of(raw) is None
    assert described(raw) == text


class Rows:
    """A data set of rows in the order of their numbers."""

    def __init__(self, count: int, *shape: int) -> None:
        self.inputs = numbers(count, *shape)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], index % 3


def train(
    change: Callable[[Tensor], Tensor] = lambda x: x,
    passes: int = 1,
    prefetch: bool = False,
    rows: Sequence[Any] | None = None,
) -> tuple[NotedBatches, Rows, list[Tensor]]:
    """Two epochs, and what the network took."""
    seen, data = NotedBatches(lambda images: images), Rows(6, 1, 4, 4)
    network = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    taken = []
    with seen.noted():
        loader: Any = DataLoader(data if rows is None else rows, batch_size=3)  # type: ignore[arg-type]
        for _ in range(2):
            batches = list(loader) if prefetch else loader
            for inputs, labels in batches:
                network.zero_grad()
                changed = nn.Identity()(change(inputs))
                taken.append(changed)
                for _ in range(passes):
                    nn.CrossEntropyLoss()(network(changed), labels).backward()
            with torch.no_grad():
                network(data.inputs + 1)
    return seen, data, taken


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(
    "change", [lambda x: x, lambda x: x.flatten(1), lambda x: x.half().float()]
)
def test_what_the_loader_gives_is_noted_where_the_network_takes_it(
    change: Callable[[Tensor], Tensor], passes: int, prefetch: bool
) -> None:
    seen, data, _ = train(change, passes, prefetch)
    batch, steps = seen.distinct()
    assert torch.equal(batch.inputs, data.inputs)
    assert batch.labels.tolist() == [0, 1, 2] * 2
    assert steps == ((0, 1, 2), (3, 4, 5)) * 2
    assert notices(seen, 1) == []


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("prefetch", [False, True])
def test_what_the_network_takes_is_noted_where_it_is_augmented(passes: int, prefetch: bool) -> None:
    flip = torch.Generator().manual_seed(1)
    seen, data, taken = train(
        lambda x: x.flip(-1) + 0.1 * torch.rand(1, generator=flip), passes, prefetch
    )
    assert [torch.equal(b.inputs, t) for b, t in zip(seen.batches, taken, strict=True)] == [
        True
    ] * 4
    batch, steps = seen.distinct()
    assert len(batch) == 12
    assert [len(step) for step in steps] == [3] * 4
    assert batch.labels.tolist() == [0, 1, 2] * 4
    assert len(notices(seen, 1)) == 1
    assert not torch.equal(batch.inputs[:6], data.inputs)


def test_two_views_of_a_batch_have_its_classes() -> None:
    noted = NotedBatches(lambda images: images)
    network = nn.Linear(5, 2)
    with noted.noted():
        for inputs, _labels in DataLoader([(numbers(5), 1), (numbers(5), 0)], batch_size=2):  # type: ignore[arg-type]
            network(torch.cat([inputs + 1, inputs + 2])).sum().backward()
    (batch,) = noted.batches
    assert (len(batch), batch.labels.tolist()) == (4, [1, 0, 1, 0])


def test_a_network_without_a_loader_is_noted_by_what_it_takes() -> None:
    seen, network = NotedBatches(lambda images: images), nn.Sequential(nn.Linear(5, 2))
    rows = numbers(4, 5)
    with seen.noted():
        for start in (0, 2):
            network(rows[start : start + 2]).sum().backward()
    batch, steps = seen.distinct()
    assert torch.equal(batch.inputs, rows)
    assert batch.labels.tolist() == [-1] * 4
    assert steps == ((0, 1), (2, 3))


def test_columns_apart_are_noted_as_the_network_takes_them_and_so_it_is_said() -> None:
    seen, network = NotedBatches(lambda images: images), nn.Linear(2, 1)
    with seen.noted():
        for row in DataLoader([{"a": 0.5, "b": 1.0}], batch_size=1):  # type: ignore[arg-type]
            network(torch.stack([row["a"], row["b"]], 1).float())
    assert notices(seen, 1)[0].startswith("noted as the network takes it, without targets")


def test_what_cannot_be_noted_is_said_by_its_shapes() -> None:
    seen = NotedBatches(lambda images: images)
    with seen.noted():
        for _ in DataLoader([torch.tensor(1), torch.tensor(2)], batch_size=2):  # type: ignore[arg-type]
            pass
    assert "int64 (2,)" in notices(seen, 1)[0]


def test_queries_are_noted_and_what_is_not_is_said_once_though_flower_loads_the_app_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request: Any = SimpleNamespace(
        metadata=SimpleNamespace(message_type="train", group_id="1"),
        content=SimpleNamespace(config_records={}),
    )
    context: Any = SimpleNamespace(node_id=1)
    for _ in range(3):
        truth_mod(tmp_path)(request, context, lambda message, _: message)
    request.metadata.message_type = "query"
    truth_mod(tmp_path)(request, context, lambda *_: next(iter(DataLoader([numbers(5)]))))  # type: ignore[arg-type]
    assert {path.stem for path in tmp_path.iterdir()} == {"round-0001-client-0001"}
    assert capsys.readouterr().err.count("nothing noted") == 1


def test_pixels_are_those_of_the_network() -> None:
    seen, data, _ = train(lambda x: 2 * x - 1)
    seen.pixels = lambda x: (x + 1) / 2
    assert torch.allclose(seen.distinct()[0].inputs, data.inputs)
    assert DataLoader.__iter__.__qualname__ == "DataLoader.__iter__"
