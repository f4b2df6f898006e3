"""Central DP: the server receives what it would without, and the global model pays."""

import math
from typing import Any

import pytest
import torch

from experiments.plan.folder import Run
from experiments.stages.utility import spent
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.types import Tensors
from tests.apps.cases import IMAGES, Make, files_of, simulate

CLIP, MULTIPLIER, RATE = 0.5, 0.3, 0.1


def simulated(make_run: Make, folder: str, noise: float | None = MULTIPLIER, **own: Any) -> Run:
    table = {"name": "dp_server", "clip": CLIP, "noise_multiplier": noise}
    changes: dict[str, Any] = {
        "task": {"split": "train[:7]"},  # 3, 2 and 2 rows
        "auxiliary": None,
        "federation": {"client_rows": 0, "batch_size": 3, "learning_rate": RATE, **own},
        "defenses": [{"name": "none"} if noise is None else table],
    }
    run = make_run(IMAGES, folder=folder, **changes)
    simulate(run)
    return run


def captures(run: Run) -> CaptureStore:
    (cell,) = run.cells
    return cell.captures


def clipped(update: Tensors) -> Tensors:
    size = math.sqrt(sum(float(value.square().sum()) for value in update.values()))
    return {name: value * min(1.0, CLIP / size) for name, value in update.items()}


def received(store: CaptureStore, round_: int) -> dict[str, bytes]:
    files = files_of(store.root / f"round-{round_:04d}")
    return {name: data for name, data in files.items() if name.endswith("safetensors")}


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_the_server_receives_what_it_would_without_and_the_global_model_pays(
    protocol: str, make_run: Make
) -> None:
    noisy, quiet, without = (
        captures(simulated(make_run, str(noise), noise, protocol=protocol))
        for noise in (MULTIPLIER, 0.0, None)
    )
    assert received(noisy, 1) == received(quiet, 1) == received(without, 1)
    assert len(received(noisy, 1)) == 3
    assert received(noisy, 2) != received(without, 2)

    seen = [noisy.load(CaptureKey(round=1, client=client)) for client in range(3)]
    counts = [observation.knowledge.num_examples or 0 for observation in seen]
    assert counts == [3, 2, 2]
    updates = [clipped(observation.update()) for observation in seen]
    after, silent = (s.load(CaptureKey(round=2, client=0)).sent for s in (noisy, quiet))
    step = RATE if protocol == "fedsgd" else 1.0
    rest = []
    for name, before in seen[0].sent.items():
        parts = [n / 7 * own[name] for n, own in zip(counts, updates, strict=True)]
        expected = before.double() - step * torch.stack(parts).sum(0)
        torch.testing.assert_close(silent[name].double(), expected, rtol=0, atol=1e-6)
        rest.append(((expected - after[name].double()) / step).flatten())
    noise = torch.cat(rest)
    std = MULTIPLIER * CLIP * 3 / 7
    assert float(noise.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * std / math.sqrt(len(noise))


def test_no_epsilon_is_claimed(make_run: Make) -> None:
    (cell,) = simulated(make_run, "run", rounds=1).cells
    assert spent(cell) == {}


def test_a_median_is_refused(make_run: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        simulated(make_run, "run", protocol="fedavg", strategy="fedmedian")
    assert str(caught.value) == (
        "dp_server: strategy 'fedmedian' takes no mean, for which the noise is scaled. Set "
        "federation.strategy to 'fedavg' or 'fedadam'."
    )
