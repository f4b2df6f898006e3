"""What foreign code claims about its differential privacy, held against canaries in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from safetensors.torch import save_file
from scipy.stats import binom

import fedsim
from experiments.bounds.claimed import Stated, judged
from experiments.bounds.one_run import CanaryTrial, Claim
from fedsim.canaries import Planting, canary_update
from fedsim.errors import ConfigError, StoreError
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.experiments.bounds.audited_clients import (
    ALL_ROWS,
    CANARIES,
    CLIENTS,
    CLIP,
    DELTA,
    EPSILON,
    FAULTS,
    IMPLEMENTATIONS,
    NOISE,
    RATE,
    STEPS,
    opacus_noise,
)
from tests.experiments.conftest import Said

pytestmark = pytest.mark.filterwarnings("ignore")


def claim_of(name: str) -> Stated:
    if name == "Opacus":
        return Stated(epsilon=EPSILON + 1e-3, delta=DELTA, noise=opacus_noise(), rate=RATE)
    return Stated(epsilon=EPSILON, delta=DELTA, noise=NOISE)


def refuted(name: str, fault: str, folder: Path) -> bool:
    pytest.importorskip("opacus", reason="opacus is not installed")
    return judged(IMPLEMENTATIONS[name](folder, fault), claim_of(name), "rounds", "all").refuted


def cases() -> Iterator[tuple[str, str]]:
    for name in IMPLEMENTATIONS:
        yield from ((name, fault) for fault in FAULTS[1:])
    yield "Opacus", ALL_ROWS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), cases())
def test_a_planted_fault_is_refuted_in_ten_of_ten(name: str, fault: str, tmp_path: Path) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    assert all(refuted(name, fault, tmp_path / str(run)) for run in range(10))


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_correct_code_is_refuted_no_oftener_than_stated(name: str, tmp_path: Path) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    count = sum(refuted(name, "none", tmp_path / str(run)) for run in range(40))
    assert count <= binom.isf(1e-3, 40, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("confidence", "most"), [(0.95, binom.isf(1e-3, 200, 0.05)), (0.999, 1)])
@pytest.mark.parametrize(
    ("claim", "canaries"),
    [
        (Claim(1, 1.0, NOISE, DELTA), CLIENTS),
        (Claim(STEPS, 1.0, 2 * NOISE, DELTA), CLIENTS),
        (Claim(STEPS, RATE, 1.0, DELTA), CANARIES),
    ],
    ids=["one reply", "four replies", "rows drawn"],
)
def test_200_simulations_of_a_correct_mechanism_keep_the_level(
    claim: Claim, canaries: int, confidence: float, most: float
) -> None:
    stated = Stated(epsilon=claim.epsilon, delta=DELTA, noise=claim.noise, rate=claim.rate)
    count = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        coins = rng.random(canaries) < 0.5
        drawn = rng.random((canaries, claim.steps)) < claim.rate
        scores = rng.normal(0, claim.noise, drawn.shape) + coins[:, None] * drawn
        trial = CanaryTrial(scores, coins, np.zeros(canaries), claim.rate)
        count += judged(trial, stated, "rounds", "all", confidence).refuted
    assert count <= most


def covered(sent: dict[str, Any], reply: dict[str, Any], noise: float, seed: int) -> dict[str, Any]:
    """Somebody's own clipping and noise."""
    rng = torch.Generator().manual_seed(seed)
    update = {k: reply[k] - sent[k] for k in sent}
    norm = float(torch.cat([v.flatten() for v in update.values()]).norm())
    part = {k: v * min(1.0, CLIP / norm) for k, v in update.items()}
    return {
        k: sent[k] + v + noise * CLIP * torch.randn(v.shape, generator=rng) for k, v in part.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (0.4, 1)])
def test_a_folder_of_state_dicts_is_audited(
    scale: float, code: int, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of coins drawn anew a correct mechanism is refuted as often as the level says.
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    updates, canaries = tmp_path / "updates", tmp_path / "canaries"
    (updates / "round-1").mkdir(parents=True)
    (updates / "updates.toml").write_text('kind = "weights"\n')
    sent = {"z": torch.linspace(-1, 1, 120), "a": torch.ones(4, 5)}
    save_file(sent, updates / "round-1" / "before.safetensors")
    for i in range(60):
        reply = canary_update(sent, canaries, clip=CLIP, clients=60, client=f"site-{i}")
        reply = covered(sent, reply, scale * NOISE, i)
        save_file(reply, updates / "round-1" / f"site-{i}.safetensors")
    claim = f"epsilon={EPSILON}, delta={DELTA}, noise={NOISE}"
    found, text, _ = said("audit", updates, "--claim", claim, "--planted", canaries)
    assert found == code
    assert "claimed 8, at most 7.91" in text
    assert ("REFUTED" in text) == bool(code)
    assert "assumed: the noise is Gaussian, of unknown size" in text
    found, text, _ = said("audit", updates, "--claim", claim, "--planted", canaries, "--json")
    (row,) = json.loads(text)["rows"]
    assert (row["canaries"], row["refuted"]) == (60, bool(code))
    surely = ["--planted", canaries, "--confidence", "0.999", "--json"]
    found, text, _ = said("audit", updates, "--claim", claim, *surely)
    assert "all bounds hold together at 99.9%" in json.loads(text)["assumed"]
    assert json.loads(text)["rows"][0]["at_least"] < row["at_least"] or not row["at_least"]
    for arguments, fault in (
        (["--planted", canaries], "say what is claimed"),
        (["--claim", claim], "the canaries are needed"),
        (["--claim", "epsilon=8, delta=2", "--planted", canaries], "delta"),
        (["--claim", "epsilan=8", "--planted", canaries], "Did you mean 'epsilon'"),
        (["--claim", "epsilon=many", "--planted", canaries], "Write a number."),
        (["--claim", f"{claim}, releases=2", "--planted", canaries], "there are 1"),
        (["--claim", claim, "--planted", canaries, "--released", "models"], "one round more"),
    ):
        found, _, line = said("audit", updates, *arguments)
        assert (found, fault in line, line.count("\n")) == (2, True, 1), line


def test_a_folder_of_canaries_is_its_owners_alone_and_of_one_plan(tmp_path: Path) -> None:
    folder = tmp_path / "canaries"
    planting = Planting.make(folder, "update", 1.0, 8)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Planting.make(folder, "update", 1.0, 8).plan == planting.plan
    assert [planting.number(name) for name in ("b", "a", "b")] == [0, 1, 0]
    assert planting.numbers() == {"b": 0, "a": 1}
    with pytest.raises(ConfigError, match="holds other canaries"):
        Planting.make(folder, "update", 2.0, 8)
    with pytest.raises(ConfigError, match="clip"):
        Planting.make(tmp_path / "other", "update", -1.0, 8)
    with pytest.raises(ConfigError, match="do not fit into the 6 coordinates"):
        planting.plan.directions({"w": torch.Size([2, 3])})


@pytest.mark.parametrize("fault", ["cut", "empty", "another name", "removed"])
def test_no_canary_is_left_out_for_a_spoilt_file(fault: str, tmp_path: Path) -> None:
    planting = Planting.make(tmp_path / "canaries", "update", 1.0, 8)
    for client in ("site-1", "site-12", "site-3"):
        planting.number(client)
    path = tmp_path / "canaries" / "clients" / "000001"
    whole = path.read_text()
    if fault == "removed":
        path.unlink()
    else:
        spoilt = {"cut": whole[:12], "empty": "", "another name": whole.replace("12", "1")}
        path.write_text(spoilt[fault])
    with pytest.raises(StoreError, match="000001: missing, cut or altered"):
        planting.numbers()


def test_the_last_canary_is_not_left_out(tmp_path: Path) -> None:
    planting = Planting.make(tmp_path / "canaries", "update", 1.0, 8)
    for client in ("site-1", "site-2", "site-3"):
        planting.number(client)
    (planting.root / "clients" / "000002").unlink()
    with pytest.raises(StoreError, match="000002: missing, cut or altered"):
        planting.numbers()
    assert planting.number("site-3") == 2
    assert planting.numbers() == {"site-1": 0, "site-2": 1, "site-3": 2}
    (planting.root / "planted").unlink()
    with pytest.raises(StoreError, match="planted: missing"):
        planting.numbers()


def test_more_clients_than_canaries_are_refused(tmp_path: Path) -> None:
    planting = Planting.make(tmp_path / "canaries", "update", 1.0, 2)
    for name in ("a", "b"):
        planting.number(name)
    with pytest.raises(ConfigError, match="Plant as many as there are clients"):
        planting.number("c")


def test_directions_do_not_depend_on_the_order_of_tensors(tmp_path: Path) -> None:
    plan = Planting.make(tmp_path / "canaries", "update", 1.0, 4).plan
    shapes = {"b": torch.Size([5]), "a": torch.Size([2, 3])}
    other = dict(reversed(shapes.items()))
    first, second = (plan.directions(each).gradient(1, 1.0) for each in (shapes, other))
    assert all(torch.equal(first[name], second[name]) for name in shapes)


def test_rows_fetched_elsewhere_are_refused(tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(torch.rand(8, 4), torch.zeros(8))
    planted = fedsim.CanaryRows(rows, tmp_path / "rows", clip=1.0, count=4)
    assert len(planted) == 8 + sum(planted._planting.plan.coins)
    with pytest.raises(ConfigError, match="holds other canaries"):
        fedsim.CanaryRows(rows, tmp_path / "rows", clip=2.0, count=4)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (0.3, 1)])
def test_a_flower_app_with_noise_on_the_server_is_audited(
    scale: float, code: int, tmp_path: Path, said: Said
) -> None:
    """Its replies have no noise; the models of the next rounds have."""
    np.random.seed(3)
    clients = 40
    client = ClientApp(mods=[fedsim.canary_mod(tmp_path / "canaries", CLIP, clients)])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        plain = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
        private = DifferentialPrivacyServerSideFixedClipping(plain, scale * NOISE, CLIP, clients)
        strategy = fedsim.Eavesdropper(private, tmp_path / "captures")
        strategy.start(grid, ArrayRecord({"w": torch.zeros(30, 10)}), num_rounds=3)

    run_server(app, InProcessGrid(client, clients, {}), {})
    claim = f"epsilon={EPSILON}, delta={DELTA}, noise={NOISE}, releases=1"
    words = ["audit", tmp_path / "captures", "--planted", tmp_path / "canaries", "--claim", claim]
    found, text, _ = said(*words, "--released", "models")
    assert (found, "40 canaries" in text) == (code, True), text
    found, text, _ = said(*words)
    assert (found, "REFUTED" in text) == (1, True)
