"""DP-SGD beside Opacus' own engine, on the same model, batch and generator."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedsim.defenses.dp_sgd import DpSgd
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, load_state
from fedsim.types import Batch, Tensors

opacus = pytest.importorskip("opacus", reason="opacus is not installed")

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("noise", [0.0, 0.8])
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_a_step_is_that_of_opacus(
    victim: Victim, pictures: Pictures, noise: float, clip: float
) -> None:
    """To float32 rounding, and to 1e-6 / norm of clipping, which Opacus adds to each norm."""
    batch = pictures(4, 1, 5, 5, 8)
    task, seen = victim(batch, model="mlp")
    network = task.build()
    load_state(network, seen.sent)
    own = ours(task, network, batch, DpSgd(clip=clip, noise_multiplier=noise))
    for name, value in theirs(task, network, batch, clip, noise).items():
        size = float(value.abs().max())
        torch.testing.assert_close(own[name], value, atol=2e-5 * size, rtol=1e-4)


def ours(task: Task, network: nn.Module, batch: Batch, defense: DpSgd) -> Tensors:
    rng = torch.Generator().manual_seed(3)
    total: Tensors = {}
    for i in range(len(batch)):
        single = defense.on_gradient(task.gradient(network, batch[i]), rng)
        total = {k: total[k] + v for k, v in single.items()} if total else single
    return {k: v / len(batch) for k, v in defense.on_sum(total, rng).items()}


def theirs(task: Task, network: nn.Module, batch: Batch, clip: float, noise: float) -> Tensors:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    names = [name for name, _ in network.named_parameters()]
    model = GradSampleModule(copy.deepcopy(network).train())
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=len(batch),
        generator=torch.Generator().manual_seed(3),
    )
    task.loss(model, batch).backward()
    optimizer.pre_step()
    return {n: p.grad for n, p in zip(names, model.parameters(), strict=True)}
