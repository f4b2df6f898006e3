"""Client-level DP: the whole update is clipped and covered, and each reply costs."""

import math
from typing import Any

import pytest
import torch

from experiments.checks.capture_check import examine
from experiments.plan.folder import Run
from experiments.plan.rehearsal import rehearse
from experiments.stages.utility import spent
from fedsim.accountant import Schedule
from fedsim.defenses.dp_client import DpClient
from fedsim.errors import ConfigError
from fedsim.magnitudes import squared_norm
from fedsim.types import Tensors
from tests.apps.cases import IMAGES, Make, simulate
from tests.defenses.cases import rng
from tests.gaussian import DELTA, analytic_gaussian

UPDATE: Tensors = {
    "w": torch.randn(200, 200, generator=rng(1)),
    "b": torch.randn(500, generator=rng(2)),
}


def test_the_update_is_clipped_as_a_whole_and_every_coordinate_is_covered() -> None:
    clip, multiplier = 0.5, 2.0
    quiet = DpClient(clip=clip, noise_multiplier=0.0).on_update(UPDATE, rng())
    assert float(squared_norm(quiet).sqrt()) == pytest.approx(clip, rel=1e-6)
    noisy = DpClient(clip=clip, noise_multiplier=multiplier).on_update(UPDATE, rng())
    noise = torch.cat([(noisy[name] - quiet[name]).flatten() for name in UPDATE])
    std = clip * multiplier
    assert abs(float(noise.std()) - std) < 4 * std / math.sqrt(2 * len(noise))
    assert abs(float(noise.mean())) < 4 * std / math.sqrt(len(noise))
    assert (noise != 0).float().mean() > 0.999
    soft = DpClient(clip=clip, noise_multiplier=multiplier).surrogate(UPDATE)
    assert all(torch.equal(soft[name], quiet[name]) for name in UPDATE)


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("replace", 2), ("zero_out", 1)])
def test_epsilon_is_that_of_the_gaussian_mechanism_for_the_rounds(
    adjacency: Any, sensitivity: int
) -> None:
    defense = DpClient(clip=3.0, noise_multiplier=4.0, adjacency=adjacency)
    # Nine replies tell what one with a third of the noise tells; steps and rates do not count.
    for rate, steps in ((0.01, 9), (1.0, 900)):
        found = defense.epsilon_after(Schedule(rate, steps, 9))
        expected = analytic_gaussian(4.0 / sensitivity / 3, DELTA)
        assert found == pytest.approx(expected, abs=1e-2)
    assert defense.epsilon_after(Schedule(1.0, 0, 0)) == 0.0
    bare = DpClient(clip=1.0, noise_multiplier=0.0)
    assert bare.epsilon_after(Schedule(0.1, 1, 1)) == math.inf
    assert defense.unit == "update"


@pytest.mark.parametrize("adjacency", ["replace", "zero_out"])
def test_a_budget_is_spent_by_the_last_round(adjacency: Any) -> None:
    run = Schedule(0.1, 40, 5)
    fitted = DpClient(clip=1.0, epsilon=3.0, adjacency=adjacency).fit(run)
    assert fitted.epsilon is None
    assert fitted.epsilon_after(run) == pytest.approx(3.0, abs=1e-2)
    with pytest.raises(ConfigError) as caught:
        DpClient(clip=1.0, epsilon=3.0).on_update(UPDATE, rng())
    assert str(caught.value) == (
        "dp_client.epsilon: 3.0 is a budget for a whole run, and the noise that it requires "
        "depends on its rounds. Call fit first, or set noise_multiplier."
    )


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_rounds_are_paid_for_and_captures_replay(protocol: str, make_run: Make) -> None:
    changes: dict[str, Any] = {
        "task": {"split": "train[:6]"},
        "auxiliary": None,
        "federation": {"protocol": protocol, "participation": 0.34, "rounds": 3},
        "defenses": [{"name": "dp_client", "clip": 1.0, "epsilon": 6.0}],
    }
    run = make_run(IMAGES, **changes)
    simulate(run)
    assert examine(run).faults == 0
    (cell,) = run.cells
    fitted = DpClient(clip=1.0, epsilon=6.0).fit(Schedule(0.5, 3, 3))
    replies = [0, 0, 0]
    for round_, found in spent(cell).items():
        for key in cell.captures.keys():
            replies[key.client] += key.round == round_
        assert found.epsilon == fitted.epsilon_after(Schedule(0.5, 0, max(replies)))
        assert found.replace == (found.epsilon if round_ else None)
        assert (found.add_or_remove or 0.0) <= found.epsilon / 2
    assert sum(replies) == 3
    assert max(replies) < 3


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "defense",
    [
        {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.0},
        {
            "name": "local_dp",
            "clipping_norm": 1.0,
            "sensitivity": 1.0,
            "epsilon": 1.0,
            "delta": 0.1,
        },
        {"name": "dp_server", "clip": 1.0, "noise_multiplier": 1.0},
    ],
    ids=lambda defense: str(defense["name"]),
)
def test_clients_with_batch_normalisation_keep_their_statistics(
    make_run: Make, defense: dict[str, Any]
) -> None:
    def run(statistics: str) -> Run:
        federation = {"rounds": 1, "train_mode": True, "batch_statistics": statistics}
        changes = {"task": {"model": "resnet20"}, "federation": federation, "defenses": [defense]}
        return make_run(IMAGES, folder=statistics, **changes)

    with pytest.raises(ConfigError, match=r"'bn1'.* would be sent .*batch_statistics = \"kept\""):
        rehearse(run("sent").cells)
    kept = run("kept")
    rehearse(kept.cells)
    simulate(kept)
    captures = kept.cells[0].captures
    received = [captures.load(key).received for key in captures.keys()]
    assert received
    assert not any("running" in name for reply in received for name in reply)
