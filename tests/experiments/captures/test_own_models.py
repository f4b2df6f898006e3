"""Clients whose model is not the one that the server sent to everybody."""

import html
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.attack_stage import attack_captures
from experiments.captures.captured import Captured, captured
from experiments.captures.score_stage import score_captures
from experiments.stages.search_errors import read_searches
from experiments.wording.threat import fact_words
from fedsim.errors import CannotAttack
from fedsim.store.capture import CaptureKey
from fedsim.store.truth import TruthStore
from fedsim.types import Batch
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.experiments.captures.conftest import loss

SHAPE, RATE, CLIENTS = (1, 8, 8), 0.1, 2
Tensors: TypeAlias = "OrderedDict[str, Tensor]"
Train: TypeAlias = Callable[[Message, int], dict[str, ArrayRecord]]


class Net(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.a, self.n, self.h = nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.h(self.n(F.relu(self.a(x.flatten(1)))))  # type: ignore[no-any-return]


def image(client: int) -> Tensor:
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(client))


def step(net: nn.Module, client: int, correction: dict[str, Tensor] | None = None) -> Tensors:
    """The state after a step on the client's image."""
    net.zero_grad()
    F.cross_entropy(net(image(client)), torch.tensor([client])).backward()
    with torch.no_grad():
        for name, value in net.named_parameters():
            assert value.grad is not None
            value.sub_(RATE * (value.grad + (correction or {}).get(name, torch.zeros(()))))
    return OrderedDict((k, v.clone()) for k, v in net.state_dict().items())


def without(tensors: Tensors, layer: str) -> Tensors:
    return OrderedDict((k, v) for k, v in tensors.items() if not k.startswith(layer))


def weights_in(message: Message, record: str = "arrays") -> Tensors:
    arrays = message.content[record]
    assert isinstance(arrays, ArrayRecord)
    return arrays.to_torch_state_dict()


def capture(
    folder: Path,
    train: Train,
    strategy: type[FedAvg] = FedAvg,
    rounds: int = 1,
    sends: Callable[[Tensors], Tensors] = lambda weights: weights,
) -> nn.Module:
    """Captures of clients with an image each; the model of the server."""
    client, app = ClientApp(), ServerApp()

    @client.train()
    def reply(message: Message, context: Context) -> Message:
        records = train(message, int(str(context.node_config["partition-id"])))
        metrics = {"metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict({**records, **metrics}), reply_to=message)

    torch.manual_seed(0)
    model = Net()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        about: dict[str, Any] = {"model": model, "loss": loss, "image_shape": SHAPE}
        spy = Eavesdropper(strategy(fraction_evaluate=0.0), folder, **about)
        spy.start(grid, ArrayRecord(sends(OrderedDict(model.state_dict()))), num_rounds=rounds)

    run_server(app, InProcessGrid(client, CLIENTS, {}), {})
    return model


def read(folder: Path, model: Any = None, **options: Any) -> Captured:
    given = Net() if model is None else model
    return captured(folder, given, loss=loss, image_shape=SHAPE, input_range=(0, 1), **options)


def check(captures: Captured, proven: Callable[[int], bool] = lambda round_: True) -> list[str]:
    """Each image is found, and certified in some rounds; notes where it is not."""
    notes = []
    for victim in captures:
        key = victim.observation.key
        guess = fedsim.attack(victim, "spear", quiet=True, samples=4096)
        assert guess.certified == (proven(key.round),)
        assert fedsim.score(guess, truth=image(key.client - 1000)).mean("psnr") > 50
        if not proven(key.round):
            notes.append(guess.note)
    return notes


@pytest.mark.slow
@pytest.mark.parametrize("sent", [False, True], ids=["never sent", "sent"])
@pytest.mark.parametrize("layer", ["h", "n"], ids=["personalised head", "FedBN"])
def test_layers_that_do_not_come_back_are_named(layer: str, sent: bool, tmp_path: Path) -> None:
    """Right without a proof; certified with the client's own layers."""
    head = {k: 1 + 0.3 * torch.rand_like(v.float()) for k, v in Net().state_dict().items()}
    head = {k: v.to(Net().state_dict()[k].dtype) for k, v in head.items() if k.startswith(layer)}

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        net = Net()
        net.load_state_dict({**net.state_dict(), **weights_in(message), **head})
        return {"arrays": ArrayRecord(without(step(net, client), layer))}

    class Idle(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return None, None

    def sends(weights: Tensors) -> Tensors:
        return weights if sent else without(weights, layer)

    capture(tmp_path, train, Idle, sends=sends)
    notes = check(read(tmp_path), lambda _: False)
    assert all(f"'{layer}.weight' and " in note for note in notes)
    assert all("did not come back" in note for note in notes)
    assert all(("--base FILE" in note) == (not sent) for note in notes)
    if layer == "h":
        with pytest.raises(CannotAttack, match="has its own"):
            fedsim.attack(next(iter(read(tmp_path))), "closed_form", quiet=True)
    if not sent:
        torch.save(head, tmp_path / "own.pt")
        assert all(
            fedsim.attack(victim, "spear", quiet=True).certified == (True,)
            for victim in read(tmp_path, base=str(tmp_path / "own.pt"))
        )


@pytest.mark.slow
def test_a_head_of_its_own_that_comes_back_is_certified_from_its_second_round(
    tmp_path: Path,
) -> None:
    heads = dict[int, Tensors]()

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        torch.manual_seed(50 + client)
        net = Net()
        net.load_state_dict({**net.state_dict(), **without(weights_in(message), "h")})
        net.h.load_state_dict(heads.get(client, net.h.state_dict()))
        done = step(net, client)
        heads[client] = OrderedDict((k, v.clone()) for k, v in net.h.state_dict().items())
        return {"arrays": ArrayRecord(done)}

    capture(tmp_path, train, rounds=2)
    notes = check(read(tmp_path), lambda round_: round_ == 2)
    assert all("did not start from" in note for note in notes)


@pytest.mark.slow
def test_the_scored_page_knows_the_steps_that_normalisation_counted(tmp_path: Path) -> None:
    rows = [torch.cat([image(2 * client), image(2 * client + 1)]) for client in range(CLIENTS)]
    labels = torch.tensor([0, 3])

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        net = Net()
        net.load_state_dict(weights_in(message))
        F.cross_entropy(net.train()(rows[client]), labels).backward()
        torch.optim.SGD(net.parameters(), RATE).step()
        return {"arrays": ArrayRecord(OrderedDict(net.state_dict()))}

    folder, truth = tmp_path / "captures", tmp_path / "private"
    capture(folder, train)
    for client in range(CLIENTS):
        key = CaptureKey(round=1, client=1000 + client)
        TruthStore(truth).save(key, Batch(rows[client], labels), (0, 1), ((0, 1),))
    attack_captures(read(folder, knows={"num_examples": 2}), ["inverting"], 0.5, quiet=True)
    score_captures(folder, truth)
    assert not read_searches(folder / "run")  # nobody has named the code of the network
    text = html.unescape((folder / "run" / "report" / "index.html").read_text("utf-8"))
    unknown = re.search(r"It did not know ([^.]*)\.", text)
    assert unknown is not None
    assert fact_words("labels") in unknown[1]
    assert fact_words("local_steps") not in unknown[1]
    assert fact_words("train_mode") not in unknown[1]


@pytest.mark.some(2)
@pytest.mark.parametrize("replies", ["difference", "next value", "behind"])
def test_control_variates_are_taken_out(replies: str, tmp_path: Path) -> None:
    """SCAFFOLD's second round, in which its steps are no gradients any more."""
    parameters = [name for name, _ in Net().named_parameters()]
    latest = dict[int, Tensors]()
    servers: Tensors = OrderedDict((k, torch.zeros_like(v)) for k, v in Net().state_dict().items())
    servers = OrderedDict((k, v.float()) for k, v in servers.items())

    class Scaffold(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for each in messages:
                each.content["variates"] = ArrayRecord(OrderedDict(servers))
                if replies == "behind":
                    behind = [*arrays.to_numpy_ndarrays(), *(v.numpy() for v in servers.values())]
                    each.content = RecordDict({"arrays": ArrayRecord(behind)})
            return messages

        def aggregate_train(self, server_round: int, answers: Iterable[Message]) -> Any:
            for name in parameters:
                servers[name] = torch.stack([each[name] for each in latest.values()]).mean(0)
            return None, None

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        net, names = Net(), list(servers)
        sent = list(weights_in(message).values())
        net.load_state_dict(dict(zip(names, sent[: len(names)], strict=True)))
        start = {k: v.clone() for k, v in net.named_parameters()}
        before = latest.get(client, OrderedDict((k, torch.zeros_like(v)) for k, v in start.items()))
        done = step(net, client, {k: servers[k] - before[k] for k in start})
        after = OrderedDict(
            (k, before[k] - servers[k] + (start[k] - done[k]).detach() / RATE) for k in start
        )
        latest[client] = after
        change = OrderedDict((k, after[k] - before[k]) for k in start)
        if replies == "behind":
            variates = [change.get(k, servers[k]).numpy() for k in names]
            return {"arrays": ArrayRecord([*(v.numpy() for v in done.values()), *variates])}
        replied = change if replies == "difference" else after
        return {"arrays": ArrayRecord(done), "c": ArrayRecord(replied)}

    capture(tmp_path, train, Scaffold, rounds=2)
    victims = read(tmp_path)
    assert not check(victims)
    taken = ["variates" in victim.reading.codes for victim in victims]
    assert taken == [False] * CLIENTS + [True] * CLIENTS


def test_variates_that_no_reply_tells_are_named(tmp_path: Path) -> None:
    class Corrected(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            for each in super().configure_train(server_round, arrays, config, grid):
                drawn = {k: torch.rand_like(v.float()) for k, v in Net().state_dict().items()}
                each.content["variates"] = ArrayRecord(OrderedDict(drawn))
                yield each

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        net = Net()
        net.load_state_dict(weights_in(message))
        return {"arrays": ArrayRecord(step(net, client, dict(weights_in(message, "variates"))))}

    capture(tmp_path, train, Corrected)
    for victim in read(tmp_path):
        assert "server_record" in victim.reading.codes


def test_a_slice_of_the_model_names_the_switch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HeteroFL: each client of a network as wide as it can train."""
    widths = iter([40, 20])

    class Hetero(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            for each in super().configure_train(server_round, arrays, config, grid):
                shapes = {k: v.shape for k, v in Net(next(widths)).state_dict().items()}
                sent = arrays.to_torch_state_dict().items()
                cut = {k: v[tuple(slice(size) for size in shapes[k])] for k, v in sent}
                content = RecordDict({"arrays": ArrayRecord(OrderedDict(cut))})
                about = each.metadata
                yield Message(
                    content, about.dst_node_id, about.message_type, group_id=about.group_id
                )

        def aggregate_train(self, server_round: int, answers: Iterable[Message]) -> Any:
            return None, None

    def train(message: Message, client: int) -> dict[str, ArrayRecord]:
        sent = weights_in(message)
        net = Net(len(sent["a.bias"]))
        net.load_state_dict(sent)
        return {"arrays": ArrayRecord(step(net, client))}

    capture(tmp_path, train, Hetero)
    assert not check(read(tmp_path))
    assert "(HeteroFL)" in capsys.readouterr().err
    assert not check(read(tmp_path, Net(20)))
    assert "left out" in capsys.readouterr().err
