"""In another application the eavesdropper is a guest: whatever goes wrong, the training goes on."""

import errno
import json
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import server.capture_writer
import server.guest
import server.recorder
import server.replies
from fedsim.config.cell import CaptureConfig
from fedsim.errors import StoreError
from fedsim.store.capture import CaptureStore
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server

CLIENTS, ROUNDS, HOSTILE = 3, 2, 1001
START = {"weight": np.ones((3, 4), np.float32), "bias": np.zeros(4, np.float32)}
Wrap = Callable[[Any], Any]


def trained(message: Message) -> ArrayRecord:
    sent = next(iter(message.content.array_records.values()))
    step = np.float32(message.metadata.dst_node_id - 999) / 8
    return ArrayRecord({k: Array(a.numpy() - step) for k, a in sent.items()})


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (3, 4)) -> Array:
    return Array(dtype, shape, "numpy.ndarray", data)


def reply(
    arrays: dict[str, Any] | None = None, beside: dict[str, Any] | None = None, **metrics: Any
) -> Callable[[Message], RecordDict]:
    """The content of an honest reply with something changed."""

    def content(message: Message) -> RecordDict:
        record = trained(message)
        for name, value in (arrays or {}).items():
            record[name] = value if isinstance(value, Array) else Array(value)
        numbers: dict[str, Any] = {"num-examples": 3} | {
            key.replace("_", "-"): value for key, value in metrics.items()
        }
        return RecordDict({"arrays": record, "metrics": MetricRecord(numbers)} | dict(beside or {}))

    return content


def kept(weight: str = "weights", knowledge: str = "{}") -> dict[str, Any]:
    return {"update": ConfigRecord({"kind": weight, "knowledge": knowledge})}


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,), }"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
HOSTILE_REPLIES: dict[str, Callable[[Message], RecordDict]] = {
    "update without kind": reply(beside={"update": ConfigRecord({"x": 1})}),
    "update that is a list": reply(beside={"update": ConfigRecord({"kind": [1, 2]})}),
    "knowledge that is no JSON": reply(beside=kept(knowledge="{")),
    "knowledge of nothing": reply(beside=kept(knowledge='{"nothing": 1}')),
    "knowledge that lies": reply(beside=kept("gradient", '{"labels": [1], "cohort": 5}')),
    "partition 7": reply(beside=kept(), partition_id=7),
    "partition -7": reply(beside=kept(), partition_id=-7),
    "partition of another client": reply(beside=kept(), partition_id=1000),
    "partition beyond 64 bits": reply(beside=kept(), partition_id=10**30),
    "partition that is a list": reply(beside=kept(), partition_id=[1, 2]),
    "partition that is a text": reply(
        beside={"update": ConfigRecord({"kind": "weights", "partition-id": "../../etc"})}
    ),
    "names with slashes": reply({"../../../evil": np.ones(2, np.float32)}),
    "a name of the file format": reply({"__metadata__": np.ones(2, np.float32)}),
    "a name with an escape": reply({"\x1b[31mred": np.ones(2, np.float32)}),
    "half a character as a name": reply({"\ud800": np.ones(2, np.float32)}),
    "not a number": reply({"weight": np.full((3, 4), np.nan, np.float32)}),
    "infinite": reply({"weight": np.full((3, 4), np.inf, np.float32)}),
    "no array": lambda message: RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "an empty array record": lambda message: RecordDict({"arrays": ArrayRecord()}),
    "bytes that are no array": reply({"weight": raw(b"\x00" * 48)}),
    "no bytes": reply({"weight": raw(b"")}),
    "a header cut short": reply({"weight": raw(npy(HUGE)[:20])}),
    "a header that claims terabytes": reply({"weight": raw(npy(HUGE))}),
    "a header of objects": reply({"weight": raw(npy(OBJECTS), "object", (1,))}),
    "a header that is a bomb": reply({"weight": raw(npy("(" * 60_000))}),
    "forty times the model": reply({"more": np.ones(2_000_000, np.float32)}),
    "complex numbers": reply({"weight": np.ones((3, 4), np.complex64)}),
    "texts": reply({"weight": np.full((3, 4), "x")}),
    "other shapes": reply({"weight": np.ones((1, 1), np.float32)}),
    "claims of no sense": reply(num_examples=float("nan")),
    "claims below 0": reply(num_examples=-5),
    "claims beyond 64 bits": reply(num_examples=10**30),
    "claims that are a list": reply(num_examples=[1, 2]),
    "numbers too large to keep": reply(beside={"more": MetricRecord({"a": [1, 10**400]})}),
    "bytes in a configuration": reply(beside={"blob": ConfigRecord({"a": b"\x00\xff"})}),
}


class Lenient(FedAvg):
    """Averages whatever has the names and shapes of the model, in the order of the replies."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        values: dict[str, list[Any]] = {name: [] for name in START}
        for message in replies:
            for record in message.content.array_records.values():
                for name in START.keys() & record.keys():
                    try:
                        value = record[name].numpy()
                    except Exception:  # this strategy takes what it can read
                        continue
                    if value.shape == START[name].shape and value.dtype == np.float32:
                        values[name].append(value)
        means = {name: Array(np.mean(each, 0)) for name, each in values.items()}
        return ArrayRecord(means), None


class OldLenient(OldFedAvg):
    """As ``Lenient``, of the older interface."""

    final: tuple[bytes, ...] = ()

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        means = []
        for number, name in enumerate(START):
            values = []
            for _, result in results:
                try:
                    value = np.load(BytesIO(result.parameters.tensors[number]))
                except Exception:
                    continue
                if value.shape == START[name].shape and value.dtype == np.float32:
                    values.append(value)
            means.append(np.mean(values, 0))
        parameters = ndarrays_to_parameters(means)
        self.final = tuple(parameters.tensors)
        return parameters, {}


def federate(wrap: Wrap, hostile: Callable[[Message], RecordDict] | None = None) -> Any:
    """The final weights of an app whose second client may be hostile."""
    client, final = ClientApp(), {}

    @client.train()
    def train(message: Message, context: Context) -> Message:
        honest = context.node_id != HOSTILE or hostile is None
        content = (reply() if honest or hostile is None else hostile)(message)
        return Message(content, reply_to=message)

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inner = Lenient(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        start = ArrayRecord({name: Array(value) for name, value in START.items()})
        result = wrap(inner).start(grid, start, num_rounds=ROUNDS)
        final.update({name: array.data for name, array in result.arrays.items()})

    run_server(app, InProcessGrid(client, CLIENTS, {}), {})
    assert len(final) == len(START)
    return final


def federate_old(wrap: Wrap, hostile: Callable[[FitRes], None] = lambda result: None) -> Any:
    """As ``federate``, of the older interface."""

    class Numbers(Client):
        def __init__(self, node: int) -> None:
            self.node = node

        def fit(self, ins: FitIns) -> FitRes:
            step = np.float32(self.node - 999) / 8
            values = [np.load(BytesIO(data)) - step for data in ins.parameters.tensors]
            result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(values), 3, {})
            if self.node == HOSTILE:
                hostile(result)
            return result

    inner = OldLenient(
        fraction_evaluate=0.0,
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters(list(START.values())),
    )
    app = ServerApp(
        server_fn=lambda context: ServerAppComponents(
            strategy=wrap(inner), config=ServerConfig(num_rounds=ROUNDS)
        )
    )
    client = ClientApp(client_fn=lambda context: Numbers(context.node_id))
    run_server(app, InProcessGrid(client, CLIENTS, {}), {})
    assert len(inner.final) == len(START)
    return inner.final


def only_honest(folder: Path) -> bool:
    """Whether all honest replies are there, the hostile one under its node's number or counted."""
    store = CaptureStore(folder)
    clients = [key.client for key in store.keys() if store.load(key)]
    counted = (
        sum(json.loads((folder / "left_out.json").read_text()).values())
        if (folder / "left_out.json").exists()
        else 0
    )
    assert sorted({*clients} - {HOSTILE}) == [1000, 1002]
    return clients.count(HOSTILE) + counted == ROUNDS and len(clients) + counted == 3 * ROUNDS


@pytest.mark.some(6)
@pytest.mark.parametrize("name", HOSTILE_REPLIES)
def test_a_hostile_reply_neither_stops_nor_changes_the_training(name: str, tmp_path: Path) -> None:
    hostile = HOSTILE_REPLIES[name]
    plain = federate(lambda inner: inner, hostile)
    assert federate(lambda inner: Eavesdropper(inner, tmp_path / "c"), hostile) == plain
    assert only_honest(tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def with_tensors(*tensors: bytes) -> Callable[[FitRes], None]:
    return lambda result: setattr(result, "parameters", Parameters([*tensors], "numpy.ndarray"))


def with_metrics(**metrics: Any) -> Callable[[FitRes], None]:
    return lambda result: setattr(result, "metrics", metrics)


def with_count(count: Any) -> Callable[[FitRes], None]:
    return lambda result: setattr(result, "num_examples", count)


OLD_HOSTILE: dict[str, Callable[[FitRes], None]] = {
    "no array": with_tensors(),
    "one array": with_tensors(ndarrays_to_parameters([START["weight"]]).tensors[0]),
    "bytes that are no array": with_tensors(b"\x00" * 60, b"\x00" * 60),
    "terabytes": with_tensors(npy(HUGE), npy(HUGE)),
    "objects": with_tensors(npy(OBJECTS), npy(OBJECTS)),
    "NaN": with_tensors(*ndarrays_to_parameters([np.full((3, 4), np.nan)] * 2).tensors),
    "forty times the model": with_tensors(*ndarrays_to_parameters([np.ones(2_000_000)]).tensors),
    "no examples": with_count(0),
    "examples below 0": with_count(-3),
    "a partition of its own": with_metrics(**{"partition-id": 7, "kind": "gradient"}),
    "bytes among metrics": with_metrics(blob=b"\x00\xff"),
    "NaN among metrics": with_metrics(loss=float("nan")),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", OLD_HOSTILE)
def test_nor_does_one_of_the_older_interface(name: str, tmp_path: Path) -> None:
    hostile = OLD_HOSTILE[name]
    plain = federate_old(lambda inner: inner, hostile)
    assert federate_old(lambda inner: Eavesdropper(inner, tmp_path / "c"), hostile) == plain
    assert only_honest(tmp_path / "c")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def full(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.capture_writer, "write_bytes", raising(StoreError(f"{path}: disk full")))


def full_at_the_record(patch: pytest.MonkeyPatch, path: Path) -> Any:
    fault = OSError(errno.ENOSPC, "No space left on device")
    patch.setattr(server.capture_writer, "write_json", raising(fault))


def a_file(patch: pytest.MonkeyPatch, path: Path) -> Any:
    path.write_text("a file where the folder should be")


def below_a_file(patch: pytest.MonkeyPatch, path: Path) -> Any:
    path.write_text("")
    return {"captures": path / "deep" / "captures"}


def refused(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.recorder, "claim", raising(PermissionError(errno.EACCES, "denied")))


def removed(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.capture_writer, "sync_file", raising(StoreError(f"{path}: missing")))


def no_such_tensor(patch: pytest.MonkeyPatch, path: Path) -> Any:
    return {"policy": CaptureConfig(tensors=("head",))}


def a_broken_writer(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.capture_writer, "kind_of", raising(ZeroDivisionError("division by zero")))


def an_unprintable_fault(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.capture_writer, "digest", raising(Unprintable()))


def a_broken_listener(patch: pytest.MonkeyPatch, path: Path) -> Any:
    return {"on_round": raising(KeyError("round"))}


def no_memory(patch: pytest.MonkeyPatch, path: Path) -> Any:
    patch.setattr(server.recorder, "pooled_equal", raising(MemoryError()))


def an_unknown_broadcast(patch: pytest.MonkeyPatch, path: Path) -> Any:
    broken = raising(TypeError("no such record"))
    patch.setattr(server.replies.Sent, "of", broken)
    patch.setattr(server.replies.Sent, "of_fit", broken)


FAULTS = [
    full,
    full_at_the_record,
    a_file,
    below_a_file,
    refused,
    removed,
    no_such_tensor,
    a_broken_writer,
    an_unprintable_fault,
    a_broken_listener,
    no_memory,
    an_unknown_broadcast,
]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the eavesdropper has warned of."""
    said: list[str] = []
    monkeypatch.setattr(server.guest, "log", lambda level, text, *args: said.append(text % args))
    return said


@pytest.mark.some(3)
@pytest.mark.parametrize("run", [federate, federate_old])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_capturing_and_not_the_training(
    fault: Callable[..., Any],
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warnings: list[str],
) -> None:
    plain = run(lambda inner: inner)
    options = {"captures": tmp_path / "captures"} | (
        fault(monkeypatch, tmp_path / "captures") or {}
    )
    assert run(lambda inner: Eavesdropper(inner, **options)) == plain
    (line,) = warnings
    assert "captures no more, and the training goes on" in line
    assert "\n" not in line


def test_a_failing_disk_ends_a_simulation(tmp_path: Path) -> None:
    (tmp_path / "captures").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="captures"):
        federate(lambda inner: Eavesdropper(inner, tmp_path / "captures", overwrite=True))
