"""A guard's look at replies of which the rows are known: what shows is stopped, noise passes."""

import math
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

import fedsim
from benchmarks.attest.clients import victim
from experiments.attest.guard import TESTS, Note
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.types import Tensors

CLIP = {"name": "clip", "norm": 0.1}
WEAK = {"name": "gaussian_noise", "std": 5e-5}
EXAMPLES: dict[str, int | float | list[int] | list[float]] = {"num-examples": 1}
STRONG = {"name": "dp_client", "clip": 1.0, "noise_multiplier": 0.484}


def guarded(
    model: str, count: int, *tables: dict[str, Any], first: int = 0, hold: str = ""
) -> Note:
    """The note of a client that computes one gradient and defends it."""
    task, rows, sent = victim(model)
    network, guard = task.model(sent), fedsim.Guard(hold)
    batch = task.encode(rows.take(list(range(first, first + count))))
    with guard.watching():
        task.loss(network, batch).backward()
    named = network.named_parameters()
    gradient: Tensors = {name: p.grad for name, p in named if p.grad is not None}
    chain = build_chain(tables, "defenses")
    defended = chain.on_update(gradient, torch.Generator().manual_seed(first))
    note: Note = guard.check(sent, defended)
    return note


@pytest.mark.some(7)
@pytest.mark.parametrize("table", [None, CLIP, WEAK])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20", "tiny-bert", "tiny-gpt2"])
def test_what_bears_its_rows_out_does_not_pass(
    model: str, count: int, table: dict[str, Any] | None
) -> None:
    assert not guarded(model, count, *([table] if table else [])).passes


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20", "tiny-bert", "tiny-gpt2"])
def test_the_noise_of_differential_privacy_passes(model: str, count: int) -> None:
    assert guarded(model, count, STRONG).passes


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_steps_whose_batch_is_written_over_are_asked_together(noise: float) -> None:
    net, guard, batch = nn.Linear(400, 10), fedsim.Guard("exact"), torch.empty(3, 400)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(0)
    with guard.watching():
        for _ in range(4):
            batch.uniform_(generator=rng)
            optimizer.zero_grad()
            cross_entropy(net(batch), torch.tensor([1, 2, 3])).backward()
            optimizer.step()
        net(batch[:1])  # of no consequence
    reply = net.state_dict()
    moved = reply["weight"] - start["weight"]
    reply["weight"] += noise * moved.std() * torch.randn(moved.shape, generator=rng)
    note = guard.check(start, reply)
    assert note.asked == ("exact",)
    assert note.passes == bool(noise)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_codes_in_use_show_in_their_table(table: Any, sparse: bool) -> None:
    network, guard = table(500, 16, sparse=sparse), fedsim.Guard("words")
    with guard.watching():
        network(torch.randint(80, (4, 20))).sum().backward()
    gradient, noise = network.weight.grad, 100 * torch.randn(500, 16)
    assert not guard.check(network.state_dict(), {"weight": gradient}).passes
    assert guard.check(network.state_dict(), {"weight": noise + gradient.to_dense()}).passes


def test_each_test_names_its_layer() -> None:
    assert ("words", "bert.embeddings.word_embeddings") in guarded("tiny-bert", 1).shows
    assert ("rows", "body.1") in guarded("mlp", 1).shows
    assert guarded("mlp", 1, hold="words").asked == ()
    assert not guarded("mlp", 1, hold="words").passes  # nothing was asked


def test_a_note_holds_names_of_tests_and_layers_alone() -> None:
    for model in ("mlp", "tiny-bert", "tiny-gpt2"):
        task, _, sent = victim(model)
        names = {name for name, _ in task.model(sent).named_modules()}
        for first in range(0, 40, 4):
            note = guarded(model, 2, first=first)
            assert {test for test, _ in note.shows} | set(note.asked) <= set(TESTS)
            assert {layer for _, layer in note.shows} <= names
            assert set(note.model_dump()) == {"shows", "asked"}


def test_names_of_no_test_are_refused() -> None:
    with pytest.raises(ConfigError, match="is no test"):
        fedsim.Guard("spam")
    with pytest.raises(ConfigError, match="belong together"):
        fedsim.guard_mod(then="apply")


class Net(nn.Module):
    """A first layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(48, 16), nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs.flatten(1)).relu())  # type: ignore[no-any-return]


def answered(mod: Any) -> tuple[Message, Tensors]:
    """What a Flower client with this mod replies after a step on one picture."""
    app, start = ClientApp(mods=[mod]), Net().state_dict()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        del context
        net = Net()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        cross_entropy(net(torch.rand(1, 3, 4, 4)), torch.tensor([3])).backward()
        optimizer.step()
        content = RecordDict({"arrays": ArrayRecord(net.state_dict())})
        content["metrics"] = MetricRecord(EXAMPLES)
        return Message(content, reply_to=message)

    message = Message(RecordDict({"arrays": ArrayRecord(start)}), 1, "train")
    return app(message, Context(1, 1, {}, RecordDict(), {})), start


@pytest.mark.usefixtures("flower_task")
def test_a_reply_that_shows_a_row_is_not_sent() -> None:
    reply, _ = answered(fedsim.guard_mod())
    assert reply.has_error()
    assert "rows (body)" in str(reply.error.reason)


@pytest.mark.usefixtures("flower_task")
def test_a_reply_may_be_flagged() -> None:
    reply, _ = answered(fedsim.guard_mod(then="flag"))
    shown = {"guard-exact": 1, "guard-rows": 1, "guard-words": 0, "guard-statistics": 0}
    (metrics,) = reply.content.metric_records.values()  # strategies of Flower take one such record
    assert metrics == EXAMPLES | shown


@pytest.mark.usefixtures("flower_task")
def test_a_defense_may_be_applied_first() -> None:
    reply, start = answered(fedsim.guard_mod(then="apply", apply=STRONG))
    assert not reply.has_error()
    sent = reply.content.array_records["arrays"].to_torch_state_dict()
    moved = math.sqrt(float((sent["body.weight"] - start["body.weight"]).square().mean()))
    assert moved == pytest.approx(0.484, rel=0.1)
    weak, _ = answered(fedsim.guard_mod(then="apply", apply=CLIP))
    assert weak.has_error()
