"""The eavesdropper adds the capture and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Strategy,
)

from fedsim.config.cell import CaptureConfig
from fedsim.errors import ConfigError, StoreError
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.wire import view
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.apps.plain_app import start_arrays

ROUNDS, CLIENTS = 3, 3
Wrap = Callable[[Strategy], Strategy]


def train(
    strategy: type[FedAvg], wrap: Wrap = lambda inner: inner, client: str = "app"
) -> dict[str, bytes]:
    """The global model after three rounds of the plain app."""
    final: dict[str, bytes] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inner = strategy(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        result = wrap(inner).start(grid, start_arrays(), num_rounds=ROUNDS)
        final.update({name: array.data for name, array in result.arrays.items()})

    run_server(app, InProcessGrid(f"tests.apps.plain_app:{client}", CLIENTS, {}), {})
    return final


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian])
def test_global_model_is_bit_identical_with_and_without(
    strategy: type[FedAvg], tmp_path: Path
) -> None:
    without = train(strategy)
    with_ = train(strategy, lambda inner: Eavesdropper(inner, tmp_path))
    assert with_ == without
    assert without != {name: array.data for name, array in start_arrays().items()}
    assert len(CaptureStore(tmp_path).keys()) == ROUNDS * CLIENTS


def test_captures_hold_what_crossed_the_wire(tmp_path: Path) -> None:
    train(FedAvg, lambda inner: Eavesdropper(inner, tmp_path))
    store = CaptureStore(tmp_path)
    first = store.load(CaptureKey(round=1, client=1002))
    assert list(first.sent) == list(first.received) == ["z.weight", "a.bias", "scalar"]
    for name, array in start_arrays().items():
        assert np.array_equal(first.sent[name].numpy(), array.numpy())
    rng = np.random.default_rng([2, 1])
    noise = rng.normal(size=(3, 4)).astype(np.float32)
    expected = start_arrays()["z.weight"].numpy() - 0.1 * noise
    assert np.array_equal(first.received["z.weight"].numpy(), expected)
    assert first.kind == "weights"
    assert first.knowledge.num_examples is None
    assert store.record(first.key).claimed_examples == 3
    update = first.update()["z.weight"]
    assert str(update.dtype) == "torch.float64"
    assert np.allclose(update.numpy(), 0.1 * noise, atol=1e-6)


@pytest.mark.parametrize(
    ("wrapper", "client"),
    [
        (DifferentialPrivacyServerSideAdaptiveClipping, "app"),
        (DifferentialPrivacyClientSideAdaptiveClipping, "clipped"),
    ],
)
def test_adaptive_clipping_hides_a_length_only_where_clients_clip(
    wrapper: type[Strategy], client: str, tmp_path: Path
) -> None:
    def private(inner: Strategy) -> Strategy:
        return wrapper(inner, noise_multiplier=0.0, num_sampled_clients=CLIENTS)  # type: ignore[call-arg]

    train(FedAvg, lambda inner: Eavesdropper(inner, tmp_path / "plain"))
    train(FedAvg, lambda inner: Eavesdropper(private(inner), tmp_path / "private"), client)
    plain, seen = CaptureStore(tmp_path / "plain"), CaptureStore(tmp_path / "private")
    for key in seen.keys():
        if key.round == 1:
            # Flower 1.41 clips no tensor without dimensions.
            names = ("z.weight", "a.bias")
            bare, found = (store.load(key).update() for store in (plain, seen))
            scales = torch.cat([(found[name] / bare[name]).flatten() for name in names])
            assert float(scales.std()) < 1e-4
            norm = sum(float(each.square().sum()) for each in bare.values()) ** 0.5
            expected = 0.1 / norm if client == "clipped" else 1.0  # the wrapper's first norm
            assert float(scales.mean()) == pytest.approx(expected, rel=1e-4)


def test_policy_keeps_the_rounds_and_clients_named(tmp_path: Path) -> None:
    policy = CaptureConfig(rounds=(1, 3), clients=(1000, 1002))
    heard: list[int] = []
    train(FedAvg, lambda inner: Eavesdropper(inner, tmp_path, policy, heard.append))
    kept = [(key.round, key.client) for key in CaptureStore(tmp_path).keys()]
    assert kept == [(1, 1000), (1, 1002), (3, 1000), (3, 1002)]
    assert heard == [1, 3]


def test_equal_broadcasts_are_stored_once(tmp_path: Path) -> None:
    for _ in range(2):
        train(FedAvg, lambda inner: Eavesdropper(inner, tmp_path, overwrite=True))
        assert len(list((tmp_path / "models").iterdir())) == ROUNDS


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, "cut or altered"),
        (alter, "cut or altered"),
        (Path.unlink, "the file is missing"),
    ],
)
@pytest.mark.parametrize("what", ["received", "sent", "record"])
def test_a_broken_file_is_named(
    harm: Callable[[Path], Any], said: str, what: str, tmp_path: Path
) -> None:
    train(FedAvg, lambda inner: Eavesdropper(inner, tmp_path))
    store, key = CaptureStore(tmp_path), CaptureKey(round=2, client=1001)
    path = {
        "received": store.tensors_path(key),
        "sent": store.sent_path(store.record(key).sent_sha256),
        "record": store.tensors_path(key).with_suffix(".json"),
    }[what]
    harm(path)
    with pytest.raises(StoreError) as caught:
        store.load(key)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_view_shares_memory_and_keeps_shape() -> None:
    for value in (np.zeros((2, 3), np.float32), np.asarray(5, np.int64), np.ones(0, np.float32)):
        array = Array(value)
        seen = view(array.data)
        assert seen.shape == value.shape
        assert seen.dtype == value.dtype
        assert np.array_equal(seen, value)
        assert not seen.flags.writeable


class Numbers(NumPyClient):
    """A client of Flower's older interface."""

    def __init__(self, node: int) -> None:
        self.step = (node - 998) / 8

    def fit(self, parameters: Any, config: Any) -> Any:
        return [value - np.float32(self.step) for value in parameters], 4, {}


def test_an_app_of_numpy_clients_is_overheard(tmp_path: Path) -> None:
    start = [np.ones((2, 3), np.float32), np.zeros(3, np.float32)]
    finals = []

    class Plain(OldFedAvg):
        def evaluate(self, server_round: int, parameters: Any) -> None:
            finals.append(parameters.tensors)

    def federate(wrap: Callable[[Any], Any]) -> None:
        def components(context: Context) -> ServerAppComponents:
            first = ndarrays_to_parameters(start)
            inner = Plain(fraction_evaluate=0.0, min_fit_clients=2, initial_parameters=first)
            return ServerAppComponents(strategy=wrap(inner), config=ServerConfig(num_rounds=2))

        client = ClientApp(client_fn=lambda context: Numbers(context.node_id).to_client())
        run_server(ServerApp(server_fn=components), InProcessGrid(client, 2, {}), {})

    federate(lambda inner: inner)
    plain, finals = finals, []
    federate(lambda inner: Eavesdropper(inner, tmp_path / "captures"))
    assert finals == plain
    assert len(plain) == 3
    store = CaptureStore(tmp_path / "captures")
    assert [str(key) for key in store.keys()][1:3] == [
        "round-0001-client-1001",
        "round-0002-client-1000",
    ]
    seen = store.load(store.keys()[2])
    assert np.allclose(seen.sent["0"].numpy(), start[0] - 0.3125)
    assert np.allclose(seen.received["0"].numpy(), start[0] - 0.5625)
    assert store.record(store.keys()[0]).claimed_examples == 4


def test_what_is_no_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"int is no strategy of Flower\. Pass the strategy"):
        Eavesdropper(3, tmp_path)  # type: ignore[arg-type]
