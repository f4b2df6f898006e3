"""Whatever a Flower client replies with: the certificate is that of plain weights."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.attack_stage import attack_captures
from experiments.captures.captured import Captured, captured
from experiments.captures.multiples import multiple_of
from experiments.captures.update import Update, update_of
from fedsim.errors import CannotAttack, ConfigError
from fedsim.knowledge import Knowledge
from fedsim.reply_kind import kind_of
from fedsim.store.capture import CaptureKey, CaptureStore, client_of
from fedsim.tasks.given import task_of
from fedsim.types import Batch
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.experiments.captures.conftest import loss

SHAPE, RATE, CLIENTS = (1, 8, 8), 0.1, 3
Tensors: TypeAlias = "OrderedDict[str, Tensor]"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(64, 40), nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.h(F.relu(self.a(x.flatten(1))))  # type: ignore[no-any-return]


def image(client: int) -> Tensor:
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(100 + client))


class Step:
    """One client's step: what it was sent, the weights after it, and the gradient."""

    def __init__(self, sent: Any, client: int) -> None:
        model = Net()
        model.load_state_dict({k: v for k, v in sent.items() if k in model.state_dict()})
        F.cross_entropy(model(image(client)), torch.tensor([client % 4])).backward()
        self.client, self.sent = client, OrderedDict(model.state_dict())
        self.gradient = OrderedDict((k, p.grad.clone()) for k, p in model.named_parameters())  # type: ignore[union-attr]
        self.weights = OrderedDict((k, v - RATE * self.gradient[k]) for k, v in self.sent.items())

    def each(self, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensors:
        """A tensor of (sent, weights, gradient) each."""
        return OrderedDict(
            (k, change(v, self.weights[k], self.gradient[k])) for k, v in self.sent.items()
        )


Reply: TypeAlias = Callable[[Step], Any]
WEIGHTS: dict[str, Reply] = {
    "float32": lambda step: step.weights,
    "float64": lambda step: step.each(lambda s, w, g: w.double()),
    "some arrays alone": lambda step: OrderedDict(list(step.weights.items())[:2]),
    "control variates behind": lambda step: OrderedDict(
        [*step.weights.items(), *((f"c.{k}", v) for k, v in step.gradient.items())]
    ),
    "numbered, control variates behind": lambda step: OrderedDict(
        (str(i), v) for i, v in enumerate([*step.weights.values(), *step.gradient.values()])
    ),
    "other names": lambda step: OrderedDict((f"net.{k}", v) for k, v in step.weights.items()),
    "a single vector": lambda step: OrderedDict(
        vector=torch.cat([v.flatten() for v in step.weights.values()])
    ),
    "a record for each layer": lambda step: {
        layer: ArrayRecord({k: v for k, v in step.weights.items() if k.startswith(layer)})
        for layer in "ah"
    },
    "as Opacus names them": lambda step: OrderedDict(
        (f"_module.{k}", v) for k, v in step.weights.items()
    ),
    "a record of control variates first": lambda step: {
        "variates": ArrayRecord(step.gradient),
        "model": ArrayRecord(step.weights),
    },
}


def bits(value: Tensor) -> bytes:
    return value.bfloat16().contiguous().view(torch.uint16).numpy().tobytes()


def npy_file(value: Tensor) -> bytes:
    """As numpy saves an array of the package ml_dtypes."""
    file = BytesIO()
    np.save(file, np.frombuffer(bits(value), "V2").reshape(value.shape))
    return file.getvalue()


def narrow(tensors: Tensors, written: Callable[[Tensor], bytes], dtype: str) -> dict[str, Any]:
    """Tensors in bfloat16, which numpy lacks."""
    arrays = {k: Array(dtype, tuple(v.shape), "own", written(v)) for k, v in tensors.items()}
    return {"arrays": ArrayRecord(arrays)}


BFLOAT16: dict[str, Reply] = {
    "gradients as bare bytes": lambda step: narrow(step.gradient, bits, "torch.bfloat16"),
    "gradients as files of numpy": lambda step: narrow(step.gradient, npy_file, "bfloat16"),
    "scaled gradients": lambda step: narrow(step.each(lambda s, w, g: RATE * g), bits, "bfloat16"),
    "differences": lambda step: narrow(step.each(lambda s, w, g: w - s), bits, "bfloat16"),
}
DIFFERENCES: dict[str, Reply] = {
    "float32": lambda step: step.each(lambda s, w, g: w - s),
    "float64": lambda step: step.each(lambda s, w, g: w.double() - s.double()),
    "float64 of float32": lambda step: step.each(lambda s, w, g: (w - s).double()),
    "clipped": lambda step: step.each(lambda s, w, g: 0.37 * (w - s)),
    "a scaled gradient": lambda step: step.each(lambda s, w, g: -RATE * g),
    "float16": lambda step: step.each(lambda s, w, g: (w - s).half()),
}
PSEUDO: dict[str, Reply] = {
    "float32": lambda step: step.each(lambda s, w, g: s - w),
    "float64": lambda step: step.each(lambda s, w, g: s.double() - w.double()),
}
GRADIENTS: dict[str, Reply] = {
    "float32": lambda step: step.gradient,
    "float64": lambda step: step.each(lambda s, w, g: g.double()),
    "float16": lambda step: step.each(lambda s, w, g: g.half()),
    "a positive rate": lambda step: step.each(lambda s, w, g: RATE * g),
    "a single vector": lambda step: OrderedDict(
        vector=torch.cat([v.flatten() for v in step.gradient.values()])
    ),
    "some arrays alone": lambda step: OrderedDict(list(step.gradient.items())[:2]),
}
CASES = [
    (kind, name, reply)
    for kind, replies in {
        "weights": WEIGHTS,
        "difference": DIFFERENCES,
        "pseudo-gradient": PSEUDO,
        "gradient": GRADIENTS,
    }.items()
    for name, reply in replies.items()
]


class Idle(FedAvg):
    """Leaves the global model as it is, whatever comes."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return None, None


class Grouped(Idle):
    """Each client is sent the model of its own group, as in clustered federated learning."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        sent = []
        for number, each in enumerate(super().configure_train(server_round, arrays, config, grid)):
            rng = torch.Generator().manual_seed(number)
            own = {
                k: v + 0.05 * number * torch.randn(v.shape, generator=rng)
                for k, v in arrays.to_torch_state_dict().items()
            }
            content = RecordDict(dict(each.content.items()) | {"arrays": ArrayRecord(own)})
            about = each.metadata
            sent.append(
                Message(content, about.dst_node_id, about.message_type, group_id=about.group_id)
            )
        return sent


def capture(
    folder: Path,
    reply: Reply,
    strategy: type[FedAvg] = Idle,
    config: dict[str, Any] | None = None,
    beside: Callable[[Step], dict[str, Any]] = lambda step: {},
    **options: Any,
) -> Captured:
    """One round of an app with one image a client."""
    client, app = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        sent = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        step = Step(sent, int(str(context.node_config["partition-id"])))
        found = reply(step)
        records = {"arrays": ArrayRecord(found)} if isinstance(found, OrderedDict) else found
        metrics = {"metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict({**records, **metrics, **beside(step)}), reply_to=message)

    torch.manual_seed(0)
    model = Net()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inner = strategy(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        about: dict[str, Any] = {"model": model, "loss": loss, "image_shape": SHAPE}
        spy = Eavesdropper(inner, folder, **about, **options)
        start = ArrayRecord(model.state_dict())
        spy.start(grid, start, num_rounds=1, train_config=ConfigRecord(config or {}))

    run_server(app, InProcessGrid(client, CLIENTS, {}), {})
    return captured(folder, model, loss=loss, image_shape=SHAPE)


def check_exact(found: Captured) -> None:
    """Each client's one image is certified, and is the right one."""
    assert len(found) == CLIENTS
    for victim in found:
        guess = fedsim.attack(victim, "spear", quiet=True)
        assert guess.certified == (True,)
        truth = image(victim.observation.key.client - 1000)
        assert fedsim.score(guess, truth=truth).mean("psnr") > 75


@pytest.mark.some(3)
@pytest.mark.parametrize(("kind", "name", "reply"), CASES)
def test_every_kind_of_reply_is_told_and_certified(
    kind: str, name: str, reply: Reply, tmp_path: Path
) -> None:
    captures = capture(tmp_path, reply)
    assert {captures.store.record(key).kind for key in captures.store.keys()} == {kind}
    check_exact(captures)


def test_a_claim_of_all_rows_leaves_the_step_its_image(tmp_path: Path) -> None:
    many = {"metrics": MetricRecord({"num-examples": 128})}
    captures = capture(tmp_path, WEIGHTS["float32"], beside=lambda step: many)
    victim = next(iter(captures))
    guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.certified == (True,)
    assert guess.note == "1 example (tried, as the number is not known)"


@pytest.mark.slow
def test_layers_of_differences_in_half_precision_are_solved(tmp_path: Path) -> None:
    captures = capture(tmp_path, DIFFERENCES["float16"])
    for victim in captures:
        guess = fedsim.attack(victim, "closed_form", quiet=True)
        truth = image(victim.observation.key.client - 1000)
        assert fedsim.score(guess, truth=truth).mean("psnr") > 60


@pytest.mark.slow
@pytest.mark.parametrize("name", BFLOAT16)
def test_bfloat16_is_captured_exactly(name: str, tmp_path: Path) -> None:
    captures = capture(tmp_path, BFLOAT16[name])
    for key in captures.store.keys():
        seen = captures.store.load(key)
        step = Step(seen.sent, key.client - 1000)
        wanted = step.each(lambda s, w, g: {"d": w - s, "s": RATE * g}.get(name[0], g))
        for tensor, value in seen.received.items():
            assert torch.equal(value, wanted[tensor].bfloat16().float())
    victim = next(iter(captures))
    assert victim.observation.received["a.weight"].dtype == torch.bfloat16
    guess = fedsim.attack(victim, "spear", quiet=True)
    truth = image(victim.observation.key.client - 1000)
    assert fedsim.score(guess, truth=truth).mean("psnr") > 60  # of eight binary digits


def test_each_client_is_attacked_from_what_it_was_sent(tmp_path: Path) -> None:
    captures = capture(tmp_path, WEIGHTS["float32"], Grouped)
    assert len({captures.store.record(key).sent_sha256 for key in captures.store.keys()}) == CLIENTS
    check_exact(captures)


class Unbiased(Net):
    """Its head has no bias, which would tell a scaled difference from a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Linear(40, 4, bias=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a scaled gradient", "clipped"])
def test_a_difference_whose_sign_is_open_is_tried_as_both(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{__name__}.Net", Unbiased)
    captures = capture(tmp_path, DIFFERENCES[name])
    check_exact(captures)
    attack_captures(captures, ["spear"], 20, quiet=False)
    said = capsys.readouterr().out
    assert said.count("of all clients: ") == 1
    assert said.count(" 1.00 with this") == CLIENTS


def test_the_owner_may_say_the_kind(tmp_path: Path) -> None:
    said = capture(tmp_path / "said", DIFFERENCES["float32"], kind="gradient")
    assert said.store.record(said.store.keys()[0]).kind == "gradient"
    again = fedsim.captured(
        tmp_path / "said", Net(), loss=loss, image_shape=SHAPE, kind="difference"
    )
    check_exact(again)
    with pytest.raises(ConfigError, match="kind: 'delta'"):
        capture(tmp_path / "other", WEIGHTS["float32"], kind="delta")


def test_what_the_server_says_itself_is_known(tmp_path: Path) -> None:
    config = {"lr": RATE, "Batch_Size": 32, "local-epochs": 2, "clipping_norm": 0.5, "x": [1, 2]}
    captures = capture(tmp_path, WEIGHTS["float32"], config=config)
    record = captures.store.record(captures.store.keys()[0])
    assert record.config == {**config, "server-round": 1}
    known = record.knowledge
    assert (known.learning_rate, known.batch_size, known.local_steps) == (RATE, 32, None)
    assert known.defense == ({"name": "clip", "norm": 0.5},)
    more = fedsim.captured(tmp_path, Net(), loss=loss, image_shape=SHAPE, knows={"defense": ()})
    assert next(iter(more)).observation.knowledge.learning_rate == RATE


def test_what_clients_send_beside_their_update_is_kept(tmp_path: Path) -> None:
    def beside(step: Step) -> dict[str, Any]:
        return {
            "embedding": MetricRecord({"mean": step.gradient["h.bias"].tolist(), "loss": 1.0}),
            "blob": ConfigRecord({"mask": b"\x01\x02", "names": ["a", "b"]}),
            "variates": ArrayRecord(step.gradient),
        }

    captures = capture(tmp_path, WEIGHTS["float32"], beside=beside)
    record = captures.store.record(captures.store.keys()[0])
    assert set(record.beside) == {
        "embedding/mean",
        "blob/mask",
        *(f"variates/{name}" for name in Net().state_dict()),
    }
    assert "variates/a.weight" not in captures.store.load(record.key).received
    check_exact(captures)


def test_clients_that_did_not_train_leave_the_others_their_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = capture(
        tmp_path, lambda step: OrderedDict(step.sent) if step.client < 2 else step.weights
    )
    done = attack_captures(captures, ["spear"], 20, quiet=False)
    assert [o.certified for o in done.outcomes if o.guess] == [1]
    assert [o.record.key.client for o in done.outcomes if not o.guess] == [1000, 1001]
    assert "did not train" in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["unchanged", "nan", "fewer columns"])
def test_a_capture_that_cannot_be_read_leaves_the_others_to_programs(
    spoil: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(step: Step) -> Tensors:
        if step.client != 1:
            return step.weights
        if spoil == "unchanged":
            return OrderedDict(step.sent)
        if spoil == "nan":
            return step.each(lambda s, w, g: torch.where(w == w.max(), torch.nan, w))
        return step.each(lambda s, w, g: w[..., :3])

    captures = capture(tmp_path, reply)
    read = list(captures)
    assert [one.observation.key.client for one in read] == [1000, 1002]
    assert all(fedsim.attack(one, "spear", quiet=True).certified == (True,) for one in read)
    said = capsys.readouterr().err
    assert said.count("left out: round-0001-client-1001: ") == 1


def test_replies_that_could_not_be_read_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(step: Step) -> Tensors:
        return step.weights if step.client else step.each(lambda s, w, g: w.to(torch.complex64))

    attack_captures(capture(tmp_path, reply), ["spear"], 20, quiet=False)
    said = capsys.readouterr().out
    assert f": 1, see {tmp_path / 'left_out.json'}" in said
    assert said.count("1 certified") == CLIENTS - 1


def weights_of_a_step(factor: float) -> fedsim.Update:
    torch.manual_seed(0)
    step = Step(Net().state_dict(), 0)
    after = {name: factor * value for name, value in step.weights.items()}
    return fedsim.Update.of(
        Net(), before=step.sent, after=after, loss=loss, image_shape=SHAPE, num_examples=1
    )


def test_weights_times_a_whole_number_are_divided() -> None:
    victim = weights_of_a_step(5.0)
    assert " 5 times weights" in victim.match
    assert fedsim.attack(victim, "spear", quiet=True).certified == (True,)
    with pytest.raises(ConfigError, match=r"reply: it is 5\.[45]\d* times the weights"):
        weights_of_a_step(5.5)
    sent = {"w": torch.rand(8, 8)}
    assert multiple_of({"w": 128.3 * sent["w"]}, sent, 128) == 128
    assert multiple_of({"w": 1.1 * sent["w"]}, sent, 128) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["half weights", "bfloat16 gradient"])
def test_a_coarse_format_that_allows_no_proof_is_named(form: str) -> None:
    torch.manual_seed(0)
    net = Net()
    if form == "half weights":
        net = net.half().float()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    loss(net, Batch(image(1), torch.tensor([0]))).backward()
    gradients = {name: value.grad for name, value in net.named_parameters()}
    given: dict[str, Any] = {"gradients": {n: g.bfloat16() for n, g in gradients.items()}}  # type: ignore[union-attr]
    if form == "half weights":
        torch.optim.SGD(net.parameters(), 0.1).step()
        halves = {name: value.half() for name, value in net.state_dict().items()}
        given = {"before": before, "after": halves}
    victim = fedsim.Update.of(net, **given, loss=loss, image_shape=SHAPE, num_examples=1)
    guess = fedsim.attack(victim, "spear", quiet=True, samples=4096)
    assert guess.confidence == ("in_span",)
    shown = "rounding to float16" if form == "half weights" else "moves a pixel by up to"
    assert shown in guess.note
    solved = fedsim.attack(victim, "closed_form", quiet=True)
    assert fedsim.score(solved, truth=image(1)).mean("psnr") > 60
    assert "certified" not in solved.confidence


def on_grid(value: Tensor) -> Tensor:
    step = value.abs().max() / 127
    return (value / step).round() * step


def largest(value: Tensor) -> Tensor:
    return value * (value.abs() >= value.abs().flatten().quantile(0.9))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.h = nn.Linear(8 * 64, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.b(torch.sigmoid(self.a(images))))
        return self.h(hidden.flatten(1))  # type: ignore[no-any-return]


def compressed(net: nn.Module, squeeze: Any, kind: Any, **told: Any) -> Update:
    """One image's update, squeezed tensor by tensor."""
    value = loss(net, Batch(image(1), torch.tensor([2])))
    parts = torch.autograd.grad(value, list(net.parameters()))
    step = 1.0 if kind == "gradient" else -0.1
    pairs = zip(net.named_parameters(), parts, strict=True)
    reply = {name: squeeze(step * part) for (name, _), part in pairs}
    task = task_of(net, loss=loss, image_shape=SHAPE)
    known = Knowledge(num_examples=told.pop("num_examples", None))
    options: Any = {"base": None, "knowledge": known, "key": CaptureKey(round=1, client=1)}
    reading = update_of(task, net.state_dict(), reply, kind=kind, **options, **told)
    return Update(reading, task, told.get("claimed_examples"))


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", ["gradient", "difference"])
@pytest.mark.parametrize("make", [Net, Convolutions])
def test_an_update_on_a_grid_gives_the_image_and_no_false_smoothing(make: Any, kind: Any) -> None:
    torch.manual_seed(1)
    guess = fedsim.attack(
        compressed(make(), on_grid, kind, num_examples=1), "closed_form", quiet=True
    )
    assert fedsim.score(guess, truth=image(1)).mean("psnr") > 35
    assert "rounded to a grid" in guess.note
    assert "smooth" not in guess.note


@pytest.mark.slow
def test_unproven_images_are_no_more_than_claimed() -> None:
    torch.manual_seed(1)
    net = Net()
    refusals = (
        ({"claimed_examples": 1}, r"explains the update by \d+ examples, and there are 1"),
        ({"num_examples": 1}, r"entries that were cut .* add to the rank"),
    )
    for told, said in refusals:
        with pytest.raises(CannotAttack, match=said):
            fedsim.attack(compressed(net, largest, "difference", **told), "spear", quiet=True)
    guess = fedsim.attack(compressed(net, largest, "gradient"), "spear", quiet=True)
    assert "largest entries" in guess.note


def test_whole_numbers_are_named_as_such(tmp_path: Path) -> None:
    captures = capture(tmp_path, lambda step: step.each(lambda s, w, g: (100 * w).to(torch.int8)))
    with pytest.raises(ConfigError, match="whole numbers"):
        next(iter(captures))


@pytest.mark.slow
def test_a_claimed_number_is_not_contradicted_by_uncertified_images(tmp_path: Path) -> None:
    def noisy(step: Step) -> Tensors:
        rng = torch.Generator().manual_seed(step.client)
        return step.each(lambda s, w, g: w + 1e-3 * torch.randn(w.shape, generator=rng))

    done = attack_captures(capture(tmp_path, noisy), ["spear"], 1, quiet=True)
    assert all(len(o.guess.examples.batch) == 1 for o in done.outcomes if o.guess)
    said = " ".join(outcome.refusal for outcome in done.outcomes)
    assert not any(word in said for word in ("pruned", "signs", "grid"))
    assert len(done.outcomes) == CLIENTS


@pytest.mark.parametrize("share", [0.5, 2.0])
@pytest.mark.parametrize("name", ["_COSINE", "_RATIO", "_SMALL", "_FEWEST", "_ODD", "_FEW"])
def test_half_and_double_of_a_threshold_judge_alike(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedsim.reply_kind as module

    value = getattr(module, name) * share
    monkeypatch.setattr(module, name, value)
    torch.manual_seed(0)
    step = Step(Net().state_dict(), 0)
    sent = {k: v.numpy() for k, v in step.sent.items()}
    for kind, case, reply in CASES:
        found = reply(step)
        if isinstance(found, OrderedDict):
            arrays = {k: v.numpy() for k, v in found.items()}
            assert kind_of(sent, arrays) == kind, case


def numbers(model: nn.Module) -> list[Any]:
    return [value.detach().numpy() for value in model.state_dict().values()]


class Numbers(NumPyClient):
    """A client of Flower's older interface, for secure aggregation."""

    def __init__(self, client: int) -> None:
        self.client = client

    def fit(self, parameters: Any, config: Any) -> Any:
        values = map(torch.tensor, parameters)
        step = Step(dict(zip(Net().state_dict(), values, strict=True)), self.client)
        return [value.numpy() for value in step.weights.values()], 1, {"loss": self.client}


@pytest.mark.slow
def test_sums_of_secagg_are_captured_once_and_have_another_rounds_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, app = Net(), ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inner = OldFedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters(numbers(model)),
        )
        spy: Any = Eavesdropper(inner, tmp_path, model=model, loss=loss, image_shape=SHAPE)  # type: ignore[arg-type]
        legacy = LegacyContext(context, config=ServerConfig(num_rounds=2), strategy=spy)
        sums = SecAggPlusWorkflow(num_shares=CLIENTS, reconstruction_threshold=2)
        DefaultWorkflow(fit_workflow=sums)(grid, legacy)

    client = ClientApp(
        client_fn=lambda context: Numbers(context.node_id - 1000).to_client(),
        mods=[secaggplus_mod],
    )
    run_server(app, InProcessGrid(client, CLIENTS, {}), {})
    store = CaptureStore(tmp_path)
    records = [store.record(key) for key in store.keys()]
    assert [record.nodes for record in records] == [(1000, 1001, 1002)] * 2
    assert [record.knowledge.cohort for record in records] == [CLIENTS] * 2
    assert [record.claimed_examples for record in records] == [CLIENTS] * 2
    steps = [Step(model.state_dict(), client).weights for client in range(CLIENTS)]
    mean = np.mean([step["a.weight"].numpy() for step in steps], 0)
    first = store.load(store.keys()[0]).received["0"].numpy()
    assert np.allclose(first, mean, atol=5e-3)  # SecAgg+ rounds to a grid
    known = {"learning_rate": RATE, "local_steps": 1}
    captures = fedsim.captured(tmp_path, model, loss=loss, image_shape=SHAPE, knows=known)
    attack_captures(captures, ["inverting"], 1, quiet=False)
    said = capsys.readouterr().out
    assert "mean of 3 clients" in said
    assert said.count("with another") == 2
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "means of 3 clients" in page
    assert page.count(">mean of 3</td>") == 6  # two findings and a reply of each


def test_a_single_sum_has_no_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = capture(tmp_path, lambda step: Step(step.sent, 0).weights)
    assert [captures.store.record(key).nodes for key in captures.store.keys()] == [
        (1000, 1001, 1002)
    ]
    attack_captures(captures, ["spear"], 5, quiet=False)
    assert "no other update" in capsys.readouterr().out


def test_all_that_is_missing_is_asked_for_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss: .* nor the shape of its inputs.*image_shape="):
        Eavesdropper(FedAvg(), tmp_path, model=Net())
    with pytest.raises(ConfigError, match="'tokeniser'"):
        Eavesdropper(FedAvg(), tmp_path, model=Net(), tokeniser="gpt2")
    with pytest.raises(ConfigError, match="loss without"):
        Eavesdropper(FedAvg(), tmp_path, loss=loss)


def test_nodes_of_64_bits_are_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signed column of a table holds the ids of half of Flower's nodes."""
    monkeypatch.setattr("server.grids.local._FIRST_NODE", 2**63 + 5)
    captures = capture(tmp_path / "captures", WEIGHTS["float32"])
    assert [key.client for key in captures.store.keys()] == [5, 6, 7]
    assert client_of(2**64 - 1) == 2**63 - 1
    campaign = attack_captures(captures, ["spear"], 20, quiet=True)
    assert sum(outcome.guess is not None for outcome in campaign.outcomes) == CLIENTS
