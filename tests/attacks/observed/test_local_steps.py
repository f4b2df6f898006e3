"""How examples are spread over clients and steps."""

from collections.abc import Callable

import pytest
import torch

from attacks.observed.local_steps import LocalSteps
from fedsim.config.federation import FederationConfig
from fedsim.defenses.chain import Chain
from fedsim.knowledge import Knowledge
from fedsim.local.client import LocalClient
from fedsim.local.steps import schedule
from fedsim.local.unrolled import unrolled_update, unrolls
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors


def spread(kind: Kind, **facts: int | None) -> LocalSteps | None:
    knowledge = Knowledge.model_validate(facts)
    return LocalSteps.of(Observation(CaptureKey(round=1, client=0), {}, {}, kind, knowledge))


def test_what_the_protocol_tells() -> None:
    assert spread("gradient", num_examples=6, cohort=3) == LocalSteps(3, 2, 2, 1)
    assert spread("weights", num_examples=5, local_steps=1) == LocalSteps(1, 5, 5, 1)
    steps = {"local_steps": 4, "batch_size": 2}
    assert spread("weights", num_examples=6, cohort=2, **steps) == LocalSteps(2, 3, 2, 4)
    assert spread("weights", num_examples=1, **steps) == LocalSteps(1, 1, 1, 4)
    assert spread("gradient", num_examples=5, cohort=2) is None
    assert spread("gradient") is None
    assert spread("weights", num_examples=4, batch_size=2) is None
    assert spread("weights", num_examples=4, local_steps=2) is None


@pytest.mark.parametrize(("rows", "batch", "steps"), [(5, 2, 3), (5, 2, 7), (4, 2, 4), (3, 9, 2)])
def test_steps_are_those_of_the_client(rows: int, batch: int, steps: int) -> None:
    config = FederationConfig(protocol="fedavg", batch_size=batch, local_steps=steps)
    sizes = [len(step) for step in schedule(config, 0, rows, 1, 0)]
    own = spread("weights", num_examples=rows, batch_size=batch, local_steps=steps)
    assert own is not None
    told = [rows.stop - rows.start for rows, count in own.batches for _ in range(count)]
    assert sorted(told) == sorted(sizes)
    assert own.noise == pytest.approx(sum(1 / size for size in sizes) / steps**2)


def test_examples_are_weighted_by_their_steps() -> None:
    # Two clients; of three rows each the last is alone in one of three steps, the others in two.
    shares = LocalSteps(2, 3, 2, 3).shares
    torch.testing.assert_close(6 * shares, torch.tensor([2 / 2, 2 / 2, 1, 2 / 2, 2 / 2, 1]))
    assert LocalSteps(2, 3, 2, 3).examples == 6
    assert LocalSteps().shares.tolist() == [1]
    assert LocalSteps(2, 3, 2, 3).noise == pytest.approx((2 / 2 + 1) / 9 / 2)


CPU = torch.device("cpu")
PLAN = [[0, 1], [2], [2, 0], [1]]


def trained(**options: object) -> FederationConfig:
    table = {"protocol": "fedavg", "batch_size": 2, "local_steps": 4, "learning_rate": 0.3}
    return FederationConfig.model_validate({**table, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "momentum", "momentum": 0.8},
        {"optimizer": "momentum", "weight_decay": 0.1},
        {"weight_decay": 0.2, "strategy": "fedprox", "proximal_mu": 0.5},
    ],
)
@pytest.mark.parametrize("differentiable", [True, False])
def test_a_client_takes_the_same_steps(
    victim: Callable[..., tuple[Task, Observation]],
    pictures: Callable[..., Batch],
    options: dict[str, object],
    differentiable: bool,
) -> None:
    batch = pictures(3, 6, 1, 2)
    task, seen = victim(batch)
    config = trained(**options)
    assert unrolls(config)
    expected = LocalClient(task, config, Chain(), 0, CPU).defend(seen.sent, batch, PLAN, 1, 0)
    network = task.model(seen.sent)
    parameters: Tensors = dict(network.named_parameters())
    plan = [torch.tensor(step) for step in PLAN]
    tensors = unrolled_update(
        task, config, network, parameters, batch, plan, differentiable=differentiable
    )
    assert tensors.keys() == expected.update.keys()
    for name, value in tensors.items():
        assert value.requires_grad == differentiable
        torch.testing.assert_close(value.detach(), expected.update[name], atol=1e-6, rtol=1e-4)


def test_the_slope_is_that_of_all_steps(
    victim: Callable[..., tuple[Task, Observation]], pictures: Callable[..., Batch]
) -> None:
    batch = pictures(3, 6, 1, 2, size=8)
    task, seen = victim(batch)
    network = task.model(seen.sent).double()
    config = trained(optimizer="momentum", weight_decay=0.1)
    plan = [torch.tensor(step) for step in PLAN]

    def length(images: torch.Tensor) -> torch.Tensor:
        own = Batch(images, batch.labels)
        update = unrolled_update(task, config, network, dict(network.named_parameters()), own, plan)
        return torch.stack([value.square().sum() for value in update.values()]).sum()

    images = batch.inputs.double().requires_grad_()
    (slope,) = torch.autograd.grad(length(images), [images])
    way = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).double()
    ahead, back = (length(images.detach() + sign * 1e-5 * way) for sign in (1, -1))
    measured = float((ahead - back).detach() / 2e-5)
    assert float((slope * way).sum()) == pytest.approx(measured, rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"optimizer": "adamw"}, {"schedule": "linear"}, {"max_grad_norm": 1.0}]
)
def test_other_steps_are_not_unrolled(options: dict[str, object]) -> None:
    assert not unrolls(trained(**options))
